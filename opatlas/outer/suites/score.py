"""The score of kernels in a suite: how many cases and operators are right, and how fast they are beside torch."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
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


class SuiteScore:
    """The score of all operators of a database, those without a kernel included.

    Attributes:
        operators: a line for each: `operator` ("add.Tensor"); the numbers of its `cases`, of those that a kernel of its
            own gets `right`, and of those right ones whose kernel only calls torch (`torchs`); whether there was a
            kernel (`tried`), and one of its own is right in all cases (`is_right`); `speed_up`: the geometric mean over
            the cases of torch's duration as a multiple of that of the kernel, weighted by how often models make the
            call; None without durations, and unless the kernel is right.
        statuses: the number of cases by status.
        cases, right, torchs, right_operators: sums.
        speed_up: the geometric mean over the operators with a speed-up; None if there is none.
    """

    def __init__(self, operators: Sequence[Mapping[str, Any]], statuses: Mapping[str, int]) -> None:
        self.operators, self.statuses = operators, statuses
        names = ("cases", "right", "torchs", "is_right")
        self.cases, self.right, self.torchs, self.right_operators = (
            sum(each[name] for each in operators) for name in names
        )
        self._speed_ups = [each["speed_up"] for each in operators if each["speed_up"] is not None]
        self.speed_up = mean_of(self._speed_ups).ratio

    def faster(self, least: float) -> int:
        """Returns the number of operators of which all cases are right and whose speed-up is above `least`."""
        return sum(each > least for each in self._speed_ups)

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
            found["speed-up"] = (ratio(self.speed_up), f"geometric mean of {len(self._speed_ups):,} operators")
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
    operators: list[dict[str, Any]] = []
    told = Counter[str]()
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
        reasons = zip(statuses, column_cells(frame, STATUS_REASON), strict=True)
        by_torch = sum(status in _RIGHT and TORCH_WORKS in reason for status, reason in reasons)
        right = sum(status in _RIGHT for status in statuses) - by_torch
        is_right = 0 < right == len(statuses)
        operators.append(
            {
                "operator": overload_of(name),
                "cases": len(statuses),
                "right": right,
                "torchs": by_torch,
                "tried": bool(set(statuses) - _WITHOUT),
                "is_right": is_right,
                "speed_up": math.exp(sum(log * count for log, count in logs) / total) if total and is_right else None,
            }
        )
        told.update(str(status or "not run") for status in statuses)
    return SuiteScore(operators, told)


def _durations(kernel_type: str, database: Database | None) -> dict[str, float]:
    """Returns the durations in microseconds by signature."""
    if database is None or not database.csv_path(kernel_type).exists():
        return {}
    frame = database.read(kernel_type).frame
    found = zip(signatures(kernel_type, frame), map(valid_duration, column_cells(frame, AVERAGE)), strict=True)
    return {case: us for case, us in found if us is not None}
