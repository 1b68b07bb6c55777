"""The two files that a session leaves beside the CSVs: its report, and where replay and capture disagree."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from opatlas.errors import OpAtlasError
from opatlas.model.record import Record
from opatlas.model.schema import Status
from opatlas.model.signature import case_id_in, make_case_id
from opatlas.report.row_summary import RowSummary, quality_lines
from opatlas.report.session_files import (
    Cause,
    Gap,
    SessionFacts,
    find_gaps,
    replay_report,
    write_gap_csv,
)
from opatlas.store.csv_files import write_text
from opatlas.text import shortened

from .collector import Collector, about_row, outcome_of_report, row_of
from .mixing import captured_elsewhere
from .progress import RunningTime
from .records import WriteBack
from .session_context import BenchSession

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
        self.figures: dict[str, RowSummary] = {}
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
            self.figures[case_id] = RowSummary.from_json(about["figures"])
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


NOT_RUN = "not run"
XFAILED = "xfailed"
#: A row that fails without being run (--strict).
GIVEN_UP = "given up"


class Ledger:
    """What became of each row. Lives in the only process of a session, or in xdist's controller.

    Attributes:
        problems: rows that do not add up: reported by two workers, or never collected.
    """

    def __init__(self, session: BenchSession) -> None:
        self._session = session
        self._collected: set[str] = set()
        self._accounts: dict[str, str] = {}
        #: The worker of xdist that reported each row; None in the only process of a session.
        self._reporters: dict[str, Any] = {}
        self.problems: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected.update(case_id_in(item.nodeid) for item in session.items if row_of(item) is not None)

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """In xdist's controller, for each worker; the first one's collection is everybody's."""
        plan = self._session.plan_if_made
        if plan is not None and not self._collected:
            self._collected.update(plan.case_ids().intersection(map(case_id_in, ids)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        about = about_row(report)
        if about is None:
            return
        if outcome_of_report(report) == "xfailed":
            self._account(case_id_in(report.nodeid), XFAILED, getattr(report, "node", None))
        elif "given_up" in about:
            self._account(case_id_in(report.nodeid), GIVEN_UP, getattr(report, "node", None))
        elif "record" in about:
            self._account(case_id_in(report.nodeid), about["record"]["status"], getattr(report, "node", None))

    def settle(self, records: Iterable[Record]) -> None:
        """Accounts for rows whose record was kept, but whose report was lost with the worker that ran them."""
        if len(self._accounts) == len(self._collected):
            return
        for record in records:
            case_id = make_case_id(record.kernel_type, record.signature)
            if case_id in self._collected:
                self._accounts.setdefault(case_id, record.status.value)

    def counts(self) -> Counter[str]:
        """Rows by what became of them; the sum is the collection."""
        counts = Counter(self._accounts.values())
        not_run = len(self._collected) - len(self._accounts)
        if not_run:
            counts[NOT_RUN] = not_run
        return counts

    @property
    def collected(self) -> int:
        """How many rows were collected."""
        return len(self._collected)

    def kernel_types(self) -> set[str]:
        """The kernel types of the rows that were collected."""
        plan = self._session.plan_if_made
        tables = plan.tables.items() if plan is not None else ()
        return {name for name, table in tables if not self._collected.isdisjoint(table.cases.values())}

    def not_run(self) -> list[str]:
        """The ids of the rows that were collected and not run."""
        return sorted(self._collected.difference(self._accounts))

    def line(self) -> str:
        """`195 rows collected = 193 measured + 2 failed`."""
        counts, unit = self.counts(), self._session.settings.unit
        terms = " + ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda entry: -entry[1]))
        # Without commas, as the terms: a script may add them up.
        return f"{counts.total()} {unit if counts.total() == 1 else f'{unit}s'} collected = {terms}"

    def unresolved(self) -> Counter[str]:
        """Rows that an earlier session left without a measurement and this one did not run, by status."""
        plan = self._session.plan_if_made
        before = plan.unresolved() if plan is not None else {}
        return Counter(status for case_id, status in before.items() if case_id not in self._accounts)

    def _account(self, case_id: str, what: str, reporter: Any) -> None:
        """Args: reporter: who ran the row. It may run the row again (pytest-rerunfailures): the last run counts."""
        if case_id not in self._collected:
            self.problems.append(f"{case_id} was reported as {what}, but not collected")
        elif self._reporters.setdefault(case_id, reporter) is not reporter:
            self.problems.append(f"{case_id} was reported by two workers: as {self._accounts[case_id]}, then as {what}")
        else:
            self._accounts[case_id] = what


_REPORT = "replay_report"


class Report:
    """Writes the two files. Lives beside the write-back.

    Attributes:
        paths: the files that were written.
        gaps: durations that rows have from a capture and from a replay, the furthest apart first.
        problems: what could not be read for the two files, or written of them; they make the session fail.
    """

    def __init__(
        self, session: BenchSession, collector: Collector, written: WriteBack, ledger: Ledger, tally: ReportTally
    ) -> None:
        self._session = session
        self._collector = collector
        self._written = written
        self._ledger = ledger
        self._tally = tally
        self.paths: list[str] = []
        self.gaps: Sequence[Gap] = []
        self.problems: list[str] = []

    def write(self) -> None:
        """Writes the two files, once the records are merged and the rows accounted for."""
        merged = self._written.merged
        if merged is None or not (self._tally.outcomes or self.has_written()):
            return
        database = self._session.database
        # Of the others there may be no file: none of their rows was measured.
        self.gaps, self.problems = find_gaps(database, sorted(merged.updated + merged.added))
        report = database.new_report_path(_REPORT, self._session.started_at, suffix=".md")
        # The two of a session bear the same time and number.
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
        """Whether there is something to tell although no row was run: --prof-path may have added some."""
        merged = self._written.merged
        return merged is not None and bool(merged.added.total() or merged.updated.total() or merged.unmatched)

    def quality(self) -> list[str]:
        """How many of the measured rows are not quiet, and why."""
        surroundings, devices = self._session.surroundings, self._session.settings.devices
        elsewhere = self._session.settings.prof_path is not None
        cause = "" if elsewhere or not self._tally.figures else surroundings.higher_load(devices)
        return list(quality_lines(self._tally.figures.values(), cause))

    @property
    def not_comparable(self) -> str:
        """Why captured durations do not compare with those of the session; "" where they do."""
        provenance = self._session.provenance
        return "" if provenance is None else captured_elsewhere(provenance, self._session.settings)

    def not_replayable(self) -> Counter[str]:
        """Rows whose kernel type has no replay, by kernel type."""
        plan = self._session.plan_if_made
        assert plan is not None
        # What was collected has a replay: xdist's controller, which collects nothing, knows those of bench/ only.
        known = self._ledger.kernel_types().union(self._collector.known_replays())
        counts = {name: len(table.cases) for name, table in plan.tables.items() if name not in known}
        return Counter({name: count for name, count in counts.items() if count})

    def facts(self) -> SessionFacts:
        """What the session did."""
        plan = self._session.plan_if_made
        assert plan is not None
        return SessionFacts(
            run_id=self._session.run_id,
            database=self._session.settings.database,
            device=self._written.device_name,
            mode=self._session.settings.mode.value,
            outcomes=self._tally.outcomes,
            ledger=self._ledger.line(),
            not_run=self._ledger.not_run(),
            unresolved=self._ledger.unresolved(),
            statuses=self._written.statuses,
            errors=self._tally.causes(),
            assumptions=self._tally.assumptions(),
            left_out=plan.left_out(),
            duplicates={name: len(table.duplicates) for name, table in plan.tables.items() if table.duplicates},
            not_replayable=self.not_replayable(),
            merged=self._written.merged,
            seconds=self._tally.running_time.seconds,
            figures=self._tally.figures.values(),
            quality=self.quality(),
            manifest=self._written.manifest,
            not_comparable=self.not_comparable,
        )
