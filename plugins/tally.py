"""The counts of a session: outcomes, figures, causes and running times of its rows."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from opatlas.row.columns import ERROR_CLASS
from opatlas.row.signature import case_id_in
from opatlas.row.status import Status
from opatlas.show.row_summary import RowSummary
from opatlas.show.session_report import Cause
from opatlas.text import shortened

from .row_note import FOR_OTHERS, FOR_OWN, RowNote, outcome_of_report

_REASON_SHOWN = 160
#: The parts of a reason that differ between rows with the same cause: addresses, sizes, words with digits.
_PARTICULAR = re.compile(r"0x[0-9a-f]+|\b[\d,;.x]*\d[\d,;.x]*\b")
#: Shorter waits are not reported.
_REPORTED_FROM_S = 0.5


class RunningTime:
    """How long the rows of a session ran, and how long they waited for their devices."""

    def __init__(self) -> None:
        self._first_at: float | None = None
        self._last_at = 0.0
        self._waited_s = {FOR_OTHERS: 0.0, FOR_OWN: 0.0}
        #: The workers of xdist that reported rows; None in the only process of a session.
        self._workers: set[Any] = set()

    def add(self, report: pytest.TestReport, note: RowNote) -> None:
        """Adds the report of a row that has a record."""
        waited = note.get("waited", {})
        # The report of a row starts when the row has the device.
        began = report.start - sum(waited.values())
        self._first_at = began if self._first_at is None else min(self._first_at, began)
        self._last_at = max(self._last_at, report.stop)
        self._workers.add(getattr(report, "node", None))
        for who, seconds in waited.items():
            self._waited_s[who] += seconds

    @property
    def seconds(self) -> float:
        """Seconds from the first row to the last, without the average wait for other sessions."""
        return max(self._last_at - (self._first_at or self._last_at) - self.waited_each_s, 1e-3)

    @property
    def waited_each_s(self) -> float:
        """Seconds that a worker has waited for other sessions, on average."""
        return self._waited_s[FOR_OTHERS] / max(len(self._workers), 1)

    def waited(self) -> dict[str, str]:
        """Returns long waits, for the summary."""
        others_s, own_s = self._waited_s[FOR_OTHERS], self._waited_s[FOR_OWN]
        each = "" if len(self._workers) < 2 else f", {len(self._workers)} workers together"
        found = {
            "waited for another session": f"{others_s:.0f} s{each}, not counted above",
            "waited for each other": f"{own_s:.0f} s: rows of one device take turns",
        }
        return {
            name: text
            for (name, text), seconds in zip(found.items(), (others_s, own_s), strict=True)
            if seconds >= _REPORTED_FROM_S
        }


class OutcomeTally:
    """Outcomes, figures, causes and times of the rows that were run. Used in the main process of a session.

    Attributes:
        running_time: how long the rows ran, and how long they waited.
        figures: the numbers of measured rows, by case id.
        hosts: the machines of a cluster that measured rows, by case id; empty without a cluster.
    """

    def __init__(self) -> None:
        self.figures: dict[str, RowSummary] = {}
        self.hosts: dict[str, str] = {}
        #: By node id: pytest's word for the last report of a row.
        self._outcome_of: dict[str, str] = {}
        #: By node id: kernel type and cause of a row that was not measured.
        self._error_of: dict[str, tuple[str, str]] = {}
        #: By kernel type and cause: the whole reason of the first such row, and the case id of this row.
        self._reasons: dict[tuple[str, str], tuple[str, str]] = {}
        #: By case id: the kernel type, and the assumptions about the row.
        self._assumed: dict[str, tuple[str, list[str]]] = {}
        #: By node id: the error class of a candidate for a task.
        self._verdict_of: dict[str, str] = {}
        self.running_time = RunningTime()

    def count(self, report: pytest.TestReport, note: RowNote) -> None:
        """Adds the report of a row. A plugin may run a row again: the last report of a row counts."""
        if "record" not in note:
            return
        self.running_time.add(report, note)
        self._outcome_of[report.nodeid] = outcome_of_report(report)
        self._error_of.pop(report.nodeid, None)
        case_id, kernel = case_id_in(report.nodeid), note["kernel"]
        self.figures.pop(case_id, None)
        self._assumed.pop(case_id, None)
        if "figures" in note:
            self.figures[case_id] = replace(RowSummary.from_json(note["figures"]), kernel_type=kernel)
        record = note["record"]
        self.hosts.pop(case_id, None)
        if "figures" in note and record.get("host"):
            self.hosts[case_id] = record["host"]
        self._verdict_of.pop(report.nodeid, None)
        if verdict := record.get("judged", {}).get(ERROR_CLASS):
            self._verdict_of[report.nodeid] = verdict.partition("/")[0]
        if assumptions := (record.get("measurement") or {}).get("assumptions"):
            self._assumed[case_id] = kernel, assumptions
        if record["status"] != Status.MEASURED.value:
            reason = shortened(str(record["reason"]).partition("\n")[0], _REASON_SHOWN)
            error = kernel, f"{record['status']}: {_cause(record['status'], reason)}"
            self._error_of[report.nodeid] = error
            self._reasons.setdefault(error, (f"{record['status']}: {reason}", case_id))

    @property
    def outcomes(self) -> Counter[str]:
        """The number of rows, by pytest's word for the last report of each row."""
        return Counter(self._outcome_of.values())

    def verdicts(self) -> str:
        """Returns the error classes of candidates with their numbers of rows; "" if no row was judged."""
        return ", ".join(f"{count} {verdict}" for verdict, count in Counter(self._verdict_of.values()).most_common())

    def causes(self) -> list[Cause]:
        """Returns the causes of rows that were not measured, the most frequent first."""
        causes = []
        for (kernel_type, cause), count in Counter(self._error_of.values()).most_common():
            reason, case_id = self._reasons[kernel_type, cause]
            causes.append(Cause(kernel_type, _with_count(reason, count, reason != cause), count, case_id))
        return causes

    def assumptions(self) -> list[Cause]:
        """Returns the assumptions about measured rows, the most frequent first."""
        found: dict[tuple[str, str], list[tuple[str, str]]] = {}
        for case_id, (kernel_type, assumptions) in self._assumed.items():
            for assumption in assumptions:
                found.setdefault((kernel_type, _PARTICULAR.sub("N", assumption)), []).append((assumption, case_id))
        return [
            Cause(kernel_type, _with_count(rows[0][0], len(rows), rows[0][0] != common), len(rows), rows[0][1])
            for (kernel_type, common), rows in sorted(found.items(), key=lambda item: -len(item[1]))
        ]


def _with_count(text: str, count: int, is_particular: bool) -> str:
    return f"{text} (and {count - 1:,} like it)" if count > 1 and is_particular else text


def _cause(status: str, reason: str) -> str:
    """Returns a reason without the numbers of its row, so that equal causes are counted together."""
    # If a process or the device failed, the number is the cause: a signal, a deadline, a code.
    ended = status in (Status.CRASHED, Status.TIMEOUT, Status.DEVICE_ERROR)
    return reason if ended else _PARTICULAR.sub("N", reason)
