"""The score of kernels in a suite: how many cases and operators are right, and how fast they are beside torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from opatlas.data.database import Database
from opatlas.formats import percent, ratio
from opatlas.outer.suites.texts import is_folder, overload_of
from opatlas.row.columns import AVERAGE, SAMPLE, STATUS, TRACE_COUNT
from opatlas.row.quality import valid_duration
from opatlas.row.signature import column_cells, signatures
from opatlas.row.status import Status
from opatlas.text import parse_whole

#: Statuses of a case whose result was right.
_RIGHT = frozenset({Status.MEASURED, Status.CHECKED})
#: perf@p is given for these p.
FAST = (1.0, 1.5, 2.0)


@dataclass(frozen=True)
class CaseScore:
    """One case.

    Attributes:
        status: the result of the last run; None if the case never ran.
        duration_us, baseline_us: the durations of the kernel and of torch, in microseconds; None if unknown.
        count: how often models make the call; 1 where that is unknown, and for calls that somebody made up.
    """

    status: Status | None
    duration_us: float | None = None
    baseline_us: float | None = None
    count: int = 1

    @property
    def is_right(self) -> bool:
        """Whether the result was right."""
        return self.status in _RIGHT

    @property
    def was_tried(self) -> bool:
        """Whether there was a kernel."""
        return self.status not in (None, Status.UNSUPPORTED, Status.SKIPPED)

    @property
    def speed_up(self) -> float | None:
        """The duration of torch as a multiple of that of the kernel; None for a wrong result, and without durations."""
        if not self.is_right or self.duration_us is None or self.baseline_us is None:
            return None
        return self.baseline_us / self.duration_us


@dataclass(frozen=True)
class OperatorScore:
    """The cases of one operator.

    Attributes:
        operator: its overload ("add.Tensor").
        cases: the cases, those without a kernel included.
    """

    operator: str
    cases: Sequence[CaseScore]

    @property
    def right(self) -> int:
        """The number of right cases."""
        return sum(case.is_right for case in self.cases)

    @property
    def is_right(self) -> bool:
        """Whether all cases are right."""
        return bool(self.cases) and self.right == len(self.cases)

    @property
    def was_tried(self) -> bool:
        """Whether there was a kernel for a case."""
        return any(case.was_tried for case in self.cases)

    @property
    def speed_up(self) -> float | None:
        """The geometric mean over the right cases, weighted by their counts; None without durations."""
        return _geometric_mean((case.speed_up, case.count) for case in self.cases)


@dataclass(frozen=True)
class SuiteScore:
    """The score of all operators of a database.

    Attributes:
        operators: the operators, those without a kernel included.
        statuses: the number of cases by status; "not run" for those that never ran.
    """

    operators: Sequence[OperatorScore]
    statuses: Counter[str] = field(default_factory=Counter)

    @property
    def cases(self) -> int:
        """The number of cases."""
        return sum(len(each.cases) for each in self.operators)

    @property
    def right(self) -> int:
        """The number of right cases."""
        return sum(each.right for each in self.operators)

    @property
    def right_operators(self) -> int:
        """The number of operators of which all cases are right."""
        return sum(each.is_right for each in self.operators)

    @property
    def speed_up(self) -> float | None:
        """The geometric mean over the operators with a speed-up; None if there is none."""
        return _geometric_mean((each.speed_up, 1) for each in self.operators)

    @property
    def timed_operators(self) -> int:
        """The number of operators with a speed-up."""
        return sum(each.speed_up is not None for each in self.operators)

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
        if self.speed_up is not None:
            found["speed-up"] = (ratio(self.speed_up), f"geometric mean of {self.timed_operators:,} operators")
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
    operators, statuses = [], Counter[str]()
    for name in filter(is_folder, database.kernel_types()):
        if kernel_types is not None and name not in kernel_types:
            continue
        frame = database.read(name).frame
        if SAMPLE not in frame.columns:
            continue
        torchs = _durations(name, baseline)
        cases = []
        for row_signature, status, duration, count in zip(
            signatures(name, frame),
            *(column_cells(frame, each) for each in (STATUS, AVERAGE, TRACE_COUNT)),
            strict=True,
        ):
            found = Status.from_cell(status)
            statuses[str(found) if found is not None else "not run"] += 1
            baseline_us = torchs.get(row_signature)
            cases.append(CaseScore(found, valid_duration(duration), baseline_us, parse_whole(count) or 1))
        operators.append(OperatorScore(overload_of(name), cases))
    return SuiteScore(operators, statuses)


def _durations(kernel_type: str, database: Database | None) -> dict[str, float]:
    if database is None or not database.csv_path(kernel_type).exists():
        return {}
    frame = database.read(kernel_type).frame
    found = zip(signatures(kernel_type, frame), map(valid_duration, column_cells(frame, AVERAGE)), strict=True)
    return {row_signature: duration for row_signature, duration in found if duration is not None}


def _geometric_mean(weighted: Iterable[tuple[float | None, int]]) -> float | None:
    known = [(math.log(number), weight) for number, weight in weighted if number is not None and number > 0]
    total = sum(weight for _, weight in known)
    return math.exp(sum(log * weight for log, weight in known) / total) if total else None
