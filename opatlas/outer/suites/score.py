"""The score of kernels in a suite: how many cases and operators are right, and how fast they are beside torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from opatlas.ask.compare.comparison import FAST
from opatlas.data.database import Database
from opatlas.formats import percent, ratio
from opatlas.outer.judging.judgement import TORCH_WORKS
from opatlas.outer.suites.texts import is_folder, overload_of
from opatlas.row.columns import AVERAGE, SAMPLE, STATUS, STATUS_REASON, TRACE_COUNT
from opatlas.row.quality import valid_duration
from opatlas.row.rounds import mean_of
from opatlas.row.signature import column_cells, signatures
from opatlas.row.status import Status
from opatlas.text import parse_whole

#: Statuses of a case whose result was right, and of one without a kernel.
_RIGHT, _WITHOUT = frozenset({Status.MEASURED, Status.CHECKED}), frozenset({None, Status.UNSUPPORTED, Status.SKIPPED})


@dataclass(frozen=True)
class OperatorScore:
    """The cases of one operator.

    Attributes:
        operator: its overload ("add.Tensor").
        statuses: the number of cases by status; None for those that never ran.
        torchs: the number of right cases whose kernel only calls torch, which is right in any case.
        speed_up: the geometric mean over the cases of torch's duration as a multiple of that of the kernel, weighted by
            how often models make the call; None without durations, and unless the kernel is right in all cases.
    """

    operator: str
    statuses: Mapping[Status | None, int]
    torchs: int
    speed_up: float | None

    @property
    def cases(self) -> int:
        """The number of cases, those without a kernel included."""
        return sum(self.statuses.values())

    @property
    def right(self) -> int:
        """The number of cases that a kernel of its own gets right."""
        return sum(self.statuses.get(each, 0) for each in _RIGHT) - self.torchs

    @property
    def is_right(self) -> bool:
        """Whether a kernel of its own is right in all cases."""
        return 0 < self.right == self.cases

    @property
    def was_tried(self) -> bool:
        """Whether there was a kernel for a case."""
        return bool(self.statuses.keys() - _WITHOUT)


@dataclass(frozen=True)
class SuiteScore:
    """The score of all operators of a database, those without a kernel included."""

    operators: Sequence[OperatorScore] = field(default_factory=list)

    @property
    def cases(self) -> int:
        """The number of cases."""
        return sum(each.cases for each in self.operators)

    @property
    def right(self) -> int:
        """The number of cases that kernels of their own get right."""
        return sum(each.right for each in self.operators)

    @property
    def torchs(self) -> int:
        """The number of right cases whose kernel only calls torch."""
        return sum(each.torchs for each in self.operators)

    @property
    def right_operators(self) -> int:
        """The number of operators of which a kernel of its own is right in all cases."""
        return sum(each.is_right for each in self.operators)

    @property
    def statuses(self) -> Mapping[str, int]:
        """The number of cases by status."""
        found = Counter[str]()
        for each in self.operators:
            found.update({str(status or "not run"): count for status, count in each.statuses.items()})
        return found

    @property
    def speed_up(self) -> float | None:
        """The geometric mean over the operators with a speed-up; None if there is none."""
        return mean_of([each.speed_up for each in self.operators if each.speed_up is not None]).ratio

    def faster(self, least: float) -> int:
        """Returns the number of operators of which all cases are right and whose speed-up is above `least`."""
        return sum(each.is_right and (each.speed_up or 0.0) > least for each in self.operators)

    def figures(self) -> dict[str, Any]:
        """Returns what `opatlas.show.Fields` shows of the score."""

        def share(part: int, whole: int) -> tuple[int, str] | None:
            return (part, f"of {whole:,}, {percent(part / whole)}") if whole else None

        found: dict[str, Any] = {
            "right cases": share(self.right, self.cases),
            "right operators": share(self.right_operators, len(self.operators)),
        }
        if self.torchs:
            found["torch's own"] = (self.torchs, "right cases whose kernel only calls torch")
        if self.speed_up is not None:
            timed = sum(each.speed_up is not None for each in self.operators)
            found["speed-up"] = (ratio(self.speed_up), f"geometric mean of {timed:,} operators")
            found |= {f"perf@{p:g}": share(self.faster(p), len(self.operators)) for p in FAST}
        return found


def read_score(database: Database, baseline: Database | None, kernel_types: Container[str] | None = None) -> SuiteScore:
    """Returns the score of a database of a suite.

    Args:
        database: the cases with their statuses and durations.
        baseline: has torch's durations of the same rows; None: there are none.
        kernel_types: the only kernel types; None: all.

    Raises:
        OpAtlasError: a file cannot be read.
    """
    operators = []
    for name in filter(is_folder, database.kernel_types()):
        if kernel_types is not None and name not in kernel_types:
            continue
        frame = database.read(name).frame
        if SAMPLE not in frame.columns:
            continue
        statuses = list(map(Status.from_cell, column_cells(frame, STATUS)))
        torchs = _durations(name, baseline)
        counts = [parse_whole(count) or 1 for count in column_cells(frame, TRACE_COUNT)]
        logs = [
            (math.log(torchs[case] / us), count)
            for case, status, cell, count in zip(
                signatures(name, frame), statuses, column_cells(frame, AVERAGE), counts, strict=True
            )
            if status in _RIGHT and case in torchs and (us := valid_duration(cell)) is not None
        ]
        total = sum(count for _, count in logs)
        speed_up = math.exp(sum(log * count for log, count in logs) / total) if total else None
        reasons = column_cells(frame, STATUS_REASON)
        by_torch = sum(
            status in _RIGHT and TORCH_WORKS in reason for status, reason in zip(statuses, reasons, strict=True)
        )
        operator = OperatorScore(overload_of(name), Counter(statuses), by_torch, speed_up)
        operators.append(operator if operator.is_right else replace(operator, speed_up=None))
    return SuiteScore(operators)


def _durations(kernel_type: str, database: Database | None) -> dict[str, float]:
    """Returns the durations in microseconds by signature."""
    if database is None or not database.csv_path(kernel_type).exists():
        return {}
    frame = database.read(kernel_type).frame
    found = zip(signatures(kernel_type, frame), map(valid_duration, column_cells(frame, AVERAGE)), strict=True)
    return {case: us for case, us in found if us is not None}
