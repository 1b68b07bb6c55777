"""What the reports of a session add up to: outcomes, causes of failures, time."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from database.case_id import case_id_in
from database.figures import Figures
from database.reports import Cause
from database.schema import Status
from database.terminal import shortened
from plugins.items import about_row, outcome_of_report
from plugins.running_time import RunningTime

_REASON_SHOWN = 160
#: What differs between rows with the same cause: addresses, sizes, and words with digits in them.
_PARTICULAR = re.compile(r"0x[0-9a-f]+|\b[\d,;.x]*\d[\d,;.x]*\b")


class ReportTally:
    """Adds up the reports of rows. Lives in the only process of a session, or in xdist's controller.

    Attributes:
        running_time: how long the rows ran, and how long they waited.
        figures: the numbers of measured rows, by case id.
    """

    def __init__(self) -> None:
        self.figures: dict[str, Figures] = {}
        #: By node id: what pytest counted the last report of a row under, and why the row was not measured.
        self._outcome_of: dict[str, str] = {}
        self._error_of: dict[str, tuple[str, str]] = {}
        #: The first reason of each error, with what is particular to its row, and the id of that row.
        self._reasons: dict[tuple[str, str], tuple[str, str]] = {}
        #: By case id, kernel type and what was assumed of the row.
        self._assumed: dict[str, tuple[str, list[str]]] = {}
        self.running_time = RunningTime()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        about = about_row(report)
        if about is None or "record" not in about:
            return
        self.running_time.add(report, about)
        # A plugin that runs rows again reports them several times: the last report counts.
        self._outcome_of[report.nodeid] = outcome_of_report(report)
        self._error_of.pop(report.nodeid, None)
        case_id = case_id_in(report.nodeid)
        self.figures.pop(case_id, None)
        self._assumed.pop(case_id, None)
        if "figures" in about:
            self.figures[case_id] = Figures.from_json(about["figures"])
        record = about["record"]
        if assumptions := (record.get("measurement") or {}).get("assumptions"):
            self._assumed[case_id] = record["kernel_type"], assumptions
        if record["status"] != Status.MEASURED.value:
            reason = shortened(str(record["reason"]).partition("\n")[0], _REASON_SHOWN)
            error = record["kernel_type"], f"{record['status']}: {_cause(record['status'], reason)}"
            self._error_of[report.nodeid] = error
            self._reasons.setdefault(error, (f"{record['status']}: {reason}", case_id))

    @property
    def outcomes(self) -> Counter[str]:
        """Rows by what pytest counts them under."""
        return Counter(self._outcome_of.values())

    def causes(self) -> list[Cause]:
        """Why rows were not measured, the most frequent first."""
        causes = []
        for (kernel_type, cause), count in Counter(self._error_of.values()).most_common():
            reason, case_id = self._reasons[kernel_type, cause]
            causes.append(Cause(kernel_type, _with_the_like(reason, count, reason != cause), count, case_id))
        return causes

    def assumptions(self) -> list[Cause]:
        """What was assumed of measured rows, the most frequent first."""
        found: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for case_id, (kernel_type, assumptions) in self._assumed.items():
            for assumption in assumptions:
                found.setdefault((kernel_type, _PARTICULAR.sub("N", assumption)), []).append((assumption, case_id))
        return [
            Cause(kernel_type, _with_the_like(rows[0][0], len(rows), rows[0][0] != common), len(rows), rows[0][1])
            for (kernel_type, common), rows in sorted(found.items(), key=lambda item: -len(item[1]))
        ]


def _with_the_like(text: str, count: int, is_particular: bool) -> str:
    return f"{text} (and {count - 1:,} like it)" if count > 1 and is_particular else text


def _cause(status: str, reason: str) -> str:
    """A reason without what is particular to its row, so that equal causes are counted together."""
    # Where a process or the device failed the number is the cause: a signal, a deadline, a code.
    ended = status in (Status.CRASHED, Status.TIMEOUT, Status.DEVICE_ERROR)
    return reason if ended else _PARTICULAR.sub("N", reason)
