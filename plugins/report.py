"""What became of the rows of a session: counts, causes, times, and the report files beside the CSVs."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pytest

from opatlas.errors import OpAtlasError
from opatlas.model.record import Record
from opatlas.model.schema import Status
from opatlas.model.signature import case_id_in, make_case_id
from opatlas.progress import format_seconds
from opatlas.report.row_summary import RowSummary, quality_lines
from opatlas.report.session_files import Cause, Gap, SessionFacts, find_gaps, replay_report, write_gap_csv
from opatlas.store.csv_files import write_text
from opatlas.text import shorten

from .collector import Collector
from .mixing import captured_mismatch
from .records import SessionRecords
from .row_note import FOR_OTHERS, FOR_OWN, RowNote, outcome_of_report
from .session_context import SessionContext

_REASON_SHOWN = 160
#: What differs between rows with the same cause: addresses, sizes, and words with digits in them.
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

    def waiting_lines(self) -> Iterator[str]:
        """Yields lines about long waits."""
        others_s, own_s = self._waited_s[FOR_OTHERS], self._waited_s[FOR_OWN]
        if others_s >= _REPORTED_FROM_S:
            who = "" if len(self._workers) < 2 else f"{len(self._workers)} workers "
            waited = format_seconds(others_s)
            yield f"{who}waited {waited} for rows of another session on the same device, not counted above"
        if own_s >= _REPORTED_FROM_S:
            waited = format_seconds(own_s)
            yield f"workers of this session waited {waited} for each other: rows of one device take turns"


class OutcomeTally:
    """Outcomes, figures, causes and times of the rows that were run. Used in the main process of a session.

    Attributes:
        running_time: how long the rows ran, and how long they waited.
        figures: the numbers of measured rows, by case id.
    """

    def __init__(self) -> None:
        self.figures: dict[str, RowSummary] = {}
        #: By node id: what pytest counted the last report of a row under, and why the row was not measured.
        self._outcome_of: dict[str, str] = {}
        self._error_of: dict[str, tuple[str, str]] = {}
        #: The first reason of each error, with what is particular to its row, and the id of that row.
        self._reasons: dict[tuple[str, str], tuple[str, str]] = {}
        #: By case id, kernel type and what was assumed of the row.
        self._assumed: dict[str, tuple[str, list[str]]] = {}
        self.running_time = RunningTime()

    def count(self, report: pytest.TestReport, note: RowNote) -> None:
        """Adds the report of a row. A plugin may run a row again: the last report of a row counts."""
        if "record" not in note:
            return
        self.running_time.add(report, note)
        self._outcome_of[report.nodeid] = outcome_of_report(report)
        self._error_of.pop(report.nodeid, None)
        case_id = case_id_in(report.nodeid)
        self.figures.pop(case_id, None)
        self._assumed.pop(case_id, None)
        if "figures" in note:
            self.figures[case_id] = RowSummary.from_json(note["figures"])
        record = note["record"]
        if assumptions := (record.get("measurement") or {}).get("assumptions"):
            self._assumed[case_id] = record["kernel_type"], assumptions
        if record["status"] != Status.MEASURED.value:
            reason = shorten(str(record["reason"]).partition("\n")[0], _REASON_SHOWN)
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


NOT_RUN = "not run"
XFAILED = "xfailed"
#: A row that fails without being run (--strict).
GIVEN_UP = "given up"


class Ledger:
    """The account of each collected row. Used in the main process of a session.

    Attributes:
        problems: rows that two workers reported, or that were not collected.
    """

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._collected: set[str] = set()
        #: What became of each row, by case id.
        self._accounts: dict[str, str] = {}
        #: The worker of xdist that reported each row; None without xdist.
        self._reporters: dict[str, Any] = {}
        self.problems: list[str] = []

    def collect(self, case_ids: Iterable[str]) -> None:
        """Takes the ids of the collected cases, each of which must be accounted for."""
        self._collected.update(case_ids)

    def count(self, report: pytest.TestReport, note: RowNote) -> None:
        """Accounts for the row of a report."""
        if outcome_of_report(report) == "xfailed":
            outcome = XFAILED
        elif "given_up" in note:
            outcome = GIVEN_UP
        elif "record" in note:
            outcome = str(note["record"]["status"])
        else:
            return
        self._account(case_id_in(report.nodeid), outcome, getattr(report, "node", None))

    def settle(self, records: Iterable[Record]) -> None:
        """Accounts for rows whose record was written, and whose report was lost with the worker that ran them."""
        if len(self._accounts) == len(self._collected):
            return
        for record in records:
            case_id = make_case_id(record.kernel_type, record.signature)
            if case_id in self._collected:
                self._accounts.setdefault(case_id, record.status.value)

    def counts(self) -> Counter[str]:
        """Returns the number of rows by what became of them; the sum is the number of collected rows."""
        counts = Counter(self._accounts.values())
        not_run = len(self._collected) - len(self._accounts)
        if not_run:
            counts[NOT_RUN] = not_run
        return counts

    @property
    def collected(self) -> int:
        """The number of collected rows."""
        return len(self._collected)

    def kernel_types(self) -> set[str]:
        """Returns the kernel types of the collected rows."""
        plan = self._context.plan
        tables = plan.tables.items() if plan is not None else ()
        return {name for name, table in tables if not self._collected.isdisjoint(table.cases.values())}

    def not_run(self) -> list[str]:
        """Returns the ids of the rows that were collected and not run."""
        return sorted(self._collected.difference(self._accounts))

    def line(self) -> str:
        """Returns the counts as a sum: `195 rows collected = 193 measured + 2 failed`."""
        counts, unit = self.counts(), self._context.settings.unit
        terms = " + ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda entry: -entry[1]))
        # Numbers without commas: a script may add them up.
        return f"{counts.total()} {unit if counts.total() == 1 else f'{unit}s'} collected = {terms}"

    def unresolved(self) -> Counter[str]:
        """Returns the number of rows that an earlier session failed to measure and this one did not run, by status."""
        plan = self._context.plan
        before = plan.unresolved() if plan is not None else {}
        return Counter(status for case_id, status in before.items() if case_id not in self._accounts)

    def _account(self, case_id: str, outcome: str, reporter: Any) -> None:
        """`reporter` is the worker that ran the row. The same worker may run a row again: the last run counts."""
        if case_id not in self._collected:
            self.problems.append(f"{case_id} was reported as {outcome}, but not collected")
        elif self._reporters.setdefault(case_id, reporter) is not reporter:
            self.problems.append(
                f"{case_id} was reported by two workers: as {self._accounts[case_id]}, then as {outcome}"
            )
        else:
            self._accounts[case_id] = outcome


_REPORT = "replay_report"


class SessionResults:
    """The results of a session, and the two report files: replay_report_*.md and duration_gap_*.csv.

    Attributes:
        paths: the report files that were written.
        gaps: rows with a captured and a replayed duration, the largest difference first.
        problems: what could not be read or written for the report files; they make the session fail.
    """

    def __init__(
        self,
        context: SessionContext,
        collector: Collector,
        records: SessionRecords,
        ledger: Ledger,
        tally: OutcomeTally,
    ) -> None:
        self.context = context
        self.collector = collector
        self.records = records
        self.ledger = ledger
        self.tally = tally
        self.paths: list[str] = []
        self.gaps: Sequence[Gap] = []
        self.problems: list[str] = []

    def write(self) -> None:
        """Writes the report files, after the records are merged and the rows accounted for."""
        merged = self.records.merged
        if merged is None or not (self.tally.outcomes or self.has_written()):
            return
        database = self.context.database
        # A kernel type without a measured row may have no file.
        self.gaps, self.problems = find_gaps(database, sorted(merged.updated + merged.added))
        report = database.new_report_path(_REPORT, self.context.started_at, suffix=".md")
        # Both files of a session have the same time and number in their names.
        gaps = report.with_name(f"duration_gap{report.stem.removeprefix(_REPORT)}.csv")
        try:
            write_text(report, replay_report(self.facts(), self.gaps))
            self.paths = [os.path.abspath(report)]
            if self.gaps:
                write_gap_csv(gaps, self.gaps)
                self.paths.append(os.path.abspath(gaps))
        except OpAtlasError as error:
            self.problems.append(str(error))

    def has_written(self) -> bool:
        """Returns whether the merge changed a CSV; --prof-path may add rows although no row was run."""
        merged = self.records.merged
        return merged is not None and bool(merged.added.total() or merged.updated.total() or merged.unmatched)

    def quality(self) -> list[str]:
        """Returns lines on how many measured rows are noisy, and why."""
        surroundings, devices = self.context.surroundings, self.context.settings.devices
        elsewhere = self.context.settings.prof_path is not None
        cause = "" if elsewhere or not self.tally.figures else surroundings.higher_load(devices)
        return list(quality_lines(self.tally.figures.values(), cause))

    @property
    def not_comparable(self) -> str:
        """Why captured durations do not compare with those of the session; "" where they do."""
        provenance = self.context.provenance
        return "" if provenance is None else captured_mismatch(provenance, self.context.settings)

    def not_replayable(self) -> Counter[str]:
        """Returns the number of rows whose kernel type has no replay, by kernel type."""
        plan = self.context.plan
        assert plan is not None
        # A collected kernel type has a replay. xdist's controller collects nothing, and knows those of bench/ only.
        known = self.ledger.kernel_types().union(self.collector.known_replays())
        counts = {name: len(table.cases) for name, table in plan.tables.items() if name not in known}
        return Counter({name: count for name, count in counts.items() if count})

    def facts(self) -> SessionFacts:
        """Returns the facts that the report is written from."""
        plan = self.context.plan
        assert plan is not None
        return SessionFacts(
            run_id=self.context.run_id,
            database=self.context.settings.database,
            device=self.records.device_name,
            mode=self.context.settings.mode.value,
            outcomes=self.tally.outcomes,
            ledger=self.ledger.line(),
            not_run=self.ledger.not_run(),
            unresolved=self.ledger.unresolved(),
            statuses=self.records.statuses,
            errors=self.tally.causes(),
            assumptions=self.tally.assumptions(),
            left_out=plan.left_out(),
            duplicates={name: len(table.duplicates) for name, table in plan.tables.items() if table.duplicates},
            not_replayable=self.not_replayable(),
            merged=self.records.merged,
            seconds=self.tally.running_time.seconds,
            figures=self.tally.figures.values(),
            quality=self.quality(),
            manifest=self.records.manifest,
            not_comparable=self.not_comparable,
        )
