"""The shapes that a device's DispatchFFNCombine was tried with and accepts: constraints/DispatchFFNCombine.csv.

`python -m opatlas.outer.doctor.shape_probe` writes the table, one row for each case that it tried.
`Constraints.accepts` says whether a theory row may be added; nothing is refused for kernels that were not tried.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property
from pathlib import Path

from opatlas.data.csv_files import read_text_csv, write_rows
from opatlas.errors import OpAtlasError
from opatlas.files import safe_folder
from opatlas.row.status import Status

_FILE = "DispatchFFNCombine.csv"


@dataclass(frozen=True)
class MoeShape:
    """The sizes of a DispatchFFNCombine row.

    Attributes:
        m: tokens of a rank.
        h: width of a token.
        n: columns of the first weight: twice the width of an expert.
        experts: experts of a rank.
        top_k: experts of a token.
    """

    m: int
    h: int
    n: int
    experts: int
    top_k: int


AXES = tuple(field.name for field in fields(MoeShape))


@dataclass(frozen=True)
class MoeKernel:
    """A kernel of the installed version. Limits depend on the dtype of the weights and on the size of the group."""

    ep_size: int
    weights: str


@dataclass(frozen=True)
class Trial:
    """A case that was tried.

    Attributes:
        kernel, shape: the case.
        is_base: whether the case is the base of the other cases.
        status, reason: the outcome. The kernel accepts the case if the status is "measured".
        run_id: the run, whose manifest names device and versions.
    """

    kernel: MoeKernel
    shape: MoeShape
    is_base: bool
    status: Status
    reason: str
    run_id: str

    @property
    def accepted(self) -> bool:
        return self.status is Status.MEASURED


_HEADER = ("EP Size", "Weights", *AXES, "Base", "Accepted", "Status", "Reason", "Run ID")


@dataclass(frozen=True)
class Limits:
    """The accepted sizes of one axis, with the other sizes of the base.

    Attributes:
        base, step: sizes are accepted if they differ from the base by a multiple of `step`.
        low, high: the smallest and the largest accepted size; None if no smaller, or no larger, size was refused.
    """

    base: int
    step: int = 1
    low: int | None = None
    high: int | None = None

    def accept(self, size: int) -> bool:
        within = (self.low is None or size >= self.low) and (self.high is None or size <= self.high)
        return within and (size - self.base) % self.step == 0

    def __str__(self) -> str:
        ends = [f"from {self.low}" if self.low is not None else "", f"to {self.high}" if self.high is not None else ""]
        steps = f"in steps of {self.step}" if self.step > 1 else ""
        return " ".join(filter(None, [*ends, steps])) or "any that was tried"


@dataclass(frozen=True)
class Constraints:
    """The cases that were tried, and the limits that follow from them."""

    trials: tuple[Trial, ...] = ()

    def accepts(self, shape: MoeShape, *, ep_size: int, weights: str) -> bool:
        """Returns whether no trial contradicts a case.

        A size is refused outside of the limits of its axis. A case is also refused if none of its sizes is smaller than
        in a case that was refused within all limits.

        Args:
            weights: dtype of the weights in the CSV ("DT_BF16", "INT8").
        """
        kernel = MoeKernel(ep_size, weights)
        limits = self.limits(kernel)
        if not all(limit.accept(getattr(shape, axis)) for axis, limit in limits.items()):
            return False
        return not any(
            shape == refused or all(getattr(shape, axis) >= getattr(refused, axis) for axis in AXES)
            for refused in self._refused_within_limits.get(kernel, ())
        )

    def limits(self, kernel: MoeKernel) -> dict[str, Limits]:
        """Returns the limits of each size; empty for a kernel that was not tried, or refused every case."""
        return self._limits.get(kernel, {})

    @cached_property
    def _limits(self) -> dict[MoeKernel, dict[str, Limits]]:
        bases = {trial.kernel: trial.shape for trial in self.trials if trial.is_base and trial.accepted}
        return {
            kernel: {axis: self._axis_limits(kernel, base, axis) for axis in AXES} for kernel, base in bases.items()
        }

    def _axis_limits(self, kernel: MoeKernel, base: MoeShape, axis: str) -> Limits:
        along = {
            getattr(trial.shape, axis): trial.accepted
            for trial in self.trials
            if trial.kernel == kernel and replace(trial.shape, **{axis: getattr(base, axis)}) == base
        }
        middle = getattr(base, axis)
        taken = [size for size, accepted in along.items() if accepted]
        # Only the base was accepted if the greatest common divisor is 0.
        step = math.gcd(*(size - middle for size in taken)) or middle
        refused = [size for size, accepted in along.items() if not accepted]
        if not refused:
            return Limits(middle)
        on_grid = [size for size in refused if (size - middle) % step == 0]
        low = min(taken) if any(size < min(taken) for size in on_grid) else None
        high = max(taken) if any(size > max(taken) for size in on_grid) else None
        return Limits(middle, step, low, high)

    @cached_property
    def _refused_within_limits(self) -> dict[MoeKernel, list[MoeShape]]:
        """The cases that were refused although each of their sizes is within its limits."""
        found: dict[MoeKernel, list[MoeShape]] = {}
        for trial in self.trials:
            limits = self.limits(trial.kernel)
            if not trial.accepted and all(limit.accept(getattr(trial.shape, axis)) for axis, limit in limits.items()):
                found.setdefault(trial.kernel, []).append(trial.shape)
        return found


def constraints_file(database: Path) -> Path:
    """Returns the path of a database's table."""
    return safe_folder(database / "constraints") / _FILE


def load_constraints(database: Path) -> Constraints:
    """Returns the cases that were tried on the device of a database; none without a table. Raises OpAtlasError."""
    path = constraints_file(database)
    if not path.exists():
        return Constraints()
    table = read_text_csv(path)
    if tuple(table.columns) != _HEADER:
        raise OpAtlasError(f"{path}: its columns must be {', '.join(_HEADER)}: remove the file and probe again")
    lines = table.itertuples(index=False, name=None)
    return Constraints(
        tuple(_trial(dict(zip(_HEADER, line, strict=True)), path, number) for number, line in enumerate(lines, start=2))
    )


def save_constraints(database: Path, kernel: MoeKernel, trials: Sequence[Trial]) -> Path:
    """Replaces the cases of a kernel in the table, and returns its path. Raises OpAtlasError."""
    path = constraints_file(database)
    others = [trial for trial in load_constraints(database).trials if trial.kernel != kernel]
    write_rows(path, _HEADER, map(_cells, [*others, *trials]))
    return path


def _cells(trial: Trial) -> tuple[object, ...]:
    answers = ("yes" if trial.is_base else "", "yes" if trial.accepted else "no", trial.status.value, trial.reason)
    return (*astuple(trial.kernel), *astuple(trial.shape), *answers, trial.run_id)


def _trial(line: dict[str, str], path: Path, number: int) -> Trial:
    try:
        return Trial(
            MoeKernel(int(line["EP Size"]), line["Weights"]),
            MoeShape(*(int(line[axis]) for axis in AXES)),
            line["Base"] == "yes",
            Status(line["Status"]),
            line["Reason"],
            line["Run ID"],
        )
    except ValueError as error:
        raise OpAtlasError(f"{path}:{number}: {error}: correct or remove the line") from None
