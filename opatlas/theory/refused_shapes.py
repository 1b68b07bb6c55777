"""The shapes that DispatchFFNCombine accepts, by the statuses of its rows in a database.

`python -m opatlas.outer.doctor.shape_probe` adds rows that tell the limits of each size. `Constraints.accepts` says
whether a theory row may be added; nothing is refused for kernels that were not tried.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property

from opatlas.data.database import Database
from opatlas.data.log import Log
from opatlas.row.columns import CRASHES_IN_A_ROW, EP_SIZE, INPUT_DTYPES, INPUT_SHAPES, STATUS
from opatlas.row.record import RowName
from opatlas.row.signature import column_cells
from opatlas.row.slots import split_cell
from opatlas.row.status import Status
from opatlas.row.table import RowTable
from opatlas.text import parse_whole

#: Statuses of a row whose shape the kernel refuses: a case that crashes counts. An error of the device may be due to
#: other work on it, and so may a timeout: they count from the second in a row.
_REFUSED = frozenset({Status.FAILED, Status.CRASHED, Status.OOM, Status.UNSUPPORTED})


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
    """A case that was run, and whether the kernel accepts it."""

    kernel: MoeKernel
    shape: MoeShape
    accepted: bool


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
    """The cases that were run, and the limits that follow from them."""

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
        bases = {kernel: base for kernel in {trial.kernel for trial in self.trials} if (base := self._base(kernel))}
        return {
            kernel: {axis: self._axis_limits(kernel, base, axis) for axis in AXES} for kernel, base in bases.items()
        }

    def _base(self, kernel: MoeKernel) -> MoeShape | None:
        """Returns the accepted shape that the most cases differ from in one size alone; None without any."""
        shapes = [trial.shape for trial in self.trials if trial.kernel == kernel]
        lines = Counter((axis, replace(shape, **{axis: 0})) for shape in shapes for axis in AXES)
        accepted = [trial.shape for trial in self.trials if trial.kernel == kernel and trial.accepted]
        return max(
            accepted, key=lambda shape: sum(lines[axis, replace(shape, **{axis: 0})] for axis in AXES), default=None
        )

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


def shape_of(shapes: str) -> MoeShape:
    """Returns the sizes of a row: x is (M, H), slot 3 (M, k), slot 4 (E, N). Raises ValueError for other slots."""
    slots = [[int(size) for size in words.split(",")] for words in split_cell(shapes)[:5]]
    (m, h), _, _, (_, top_k), (experts, n) = slots
    return MoeShape(m=m, h=h, n=n, experts=experts, top_k=top_k)


def read_constraints(table: RowTable) -> Constraints:
    """Returns what the rows of DispatchFFNCombine in a database tell; none without a status."""
    return Constraints(tuple(_trials(table)))


def _trials(table: RowTable) -> Iterator[Trial]:
    names = (STATUS, CRASHES_IN_A_ROW, INPUT_SHAPES, INPUT_DTYPES, EP_SIZE)
    columns = (column_cells(table.frame, name) for name in names)
    log = Log(Database(table.path.parent))
    for signature, status, crashes, shapes, dtypes, ep_size in zip(table.signatures, *columns, strict=True):
        found = Status.from_cell(status)
        refused = found in _REFUSED or (found is Status.TIMEOUT and (parse_whole(crashes) or 0) > 1)
        if found is Status.DEVICE_ERROR:
            in_runs = log.statuses(RowName(table.kernel_type, signature)).values()
            refused = [each for each in in_runs if each is not Status.SKIPPED][-2:] == [found, found]
        if found is Status.MEASURED or refused:
            # Weights of each expert have a slot of their own: such rows tell nothing.
            with suppress(ValueError):
                kernel = MoeKernel(int(ep_size), split_cell(dtypes)[1])
                yield Trial(kernel, shape_of(shapes), found is Status.MEASURED)
