"""A step of a model in two databases: durations weighted by how often the step calls each row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from opatlas.errors import OpAtlasError
from opatlas.files import read_safely
from opatlas.typed_json import Count, DecodeError, decode

_LARGEST_BYTES = 64 << 20


@dataclass(frozen=True)
class StepCalls:
    """Calls of a step with equal shapes."""

    kernel_type: str
    signature: str
    calls: Count
    part: str = ""


@dataclass(frozen=True)
class ModelStep:
    """The calls of a model's step, as `opatlas model --json` prints them."""

    model: str
    parts: tuple[StepCalls, ...]

    def by_kernel_type(self) -> Mapping[str, Mapping[str, int]]:
        """Returns the number of calls by kernel type and signature."""
        found: dict[str, dict[str, int]] = {}
        for part in self.parts:
            of_type = found.setdefault(part.kernel_type, {})
            of_type[part.signature] = of_type.get(part.signature, 0) + part.calls
        return found


@dataclass(frozen=True)
class StepFigures:
    """What a step takes in two databases.

    Attributes:
        kernel_type: the kernel type; "" for all.
        calls: calls in a step.
        compared_calls: those whose row both databases measured, in a way that compares.
        baseline_us, rival_us: what these take together.
    """

    kernel_type: str
    calls: int
    compared_calls: int
    baseline_us: float
    rival_us: float

    @property
    def speed_up(self) -> float | None:
        """The baseline's time / the rival's; None without compared calls."""
        return self.baseline_us / self.rival_us if self.rival_us else None


def read_step(path: Path) -> ModelStep:
    """Reads what `opatlas model --json` printed into a file. Raises OpAtlasError."""
    remedy = "name a file that `opatlas model MODEL DB --json > FILE` wrote"
    try:
        step = decode(read_safely(path, _LARGEST_BYTES), ModelStep, str(path))
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): {remedy}") from None
    except DecodeError as error:
        raise OpAtlasError(f"{error}: {remedy}") from None
    if not any(part.calls for part in step.parts):
        raise OpAtlasError(f"{path}: has no calls: {remedy}")
    return step


def total_of(figures: Iterable[StepFigures]) -> StepFigures:
    """Returns the sums over kernel types."""
    found: Sequence[StepFigures] = list(figures)
    return StepFigures(
        "",
        sum(each.calls for each in found),
        sum(each.compared_calls for each in found),
        sum(each.baseline_us for each in found),
        sum(each.rival_us for each in found),
    )
