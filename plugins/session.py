"""The way of a row from its CSV to the device and back into the CSV, on one page.

`Session.cases` is the list of all rows of a session: each `SessionCase` says what the options do with its row, and what
became of it. `Session` has a method for each step, and the hooks of `hooks.py` call them in this order:

1. `plan` reads the database and decides which rows are run; the collector makes a test of each of these.
2. `select` gets the rows that pytest selected, and refuses to replace durations that do not compare with new ones.
3. `run` sends a row to the device and passes, skips or fails its test.
4. `record` writes the outcome to the journal of this process, and attaches it to pytest's report as a `RowNote`.
5. `receive` gets the report in the main process, and writes it into the case; then `keep` takes the record for the
   merge.
6. `merge` brings the records of all journals into the CSVs, and accounts for every row.
7. `report` writes the report files and decides the exit status. `terminal.py` prints what became of the rows.

With xdist the controller plans while the workers start, and merges and reports while they end; each worker runs and
records rows. Without xdist one process does everything.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import TYPE_CHECKING

import pytest

from opatlas.data.cells import stored_us
from opatlas.errors import OpAtlasError
from opatlas.row.columns import ERROR_CLASS
from opatlas.row.errors import MissingPrecondition
from opatlas.row.record import Record
from opatlas.row.roofline import device_peak
from opatlas.row.signature import case_id_in, make_case_id, signature
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription
from opatlas.run.job import RowOutcome, outcome_of
from opatlas.run.registry import replay_spec
from opatlas.show.row_summary import Gap, summarize_row

from .cases import (
    GIVEN_UP,
    NOT_RUN,
    WITHOUT_REPLAY,
    XFAILED,
    CaseResult,
    Fate,
    Plan,
    SessionCase,
    ledger,
    of_fate,
    row_of,
)
from .choice import requested_rows
from .collector import Collector, lacks_replay
from .plan import plan_session
from .records import SessionRecords, add_unmatched
from .reports import RowNote, cut_printed, note_of, outcome_of_report, properties_of, record_of, set_properties
from .row_runner import RowRunner
from .summary import write_reports
from .target import check_replaced

if TYPE_CHECKING:
    from .session_context import SessionContext

_OUTCOME = pytest.StashKey[RowOutcome | None]()
#: The record of an outcome that arrived ahead of pytest, whether the journal has it, and where it ran.
_ARRIVED = pytest.StashKey[tuple[Record, bool, DeviceDescription] | None]()


class Session:
    """A session of replays in one process of pytest.

    Attributes:
        context: options, run, database and the request to stop.
        runner: runs the rows.
        records: the records of the session, and what the merge did.
        gaps: rows with a captured and a replayed duration, the largest difference first.
        paths: the report files that were written.
        unaccounted: rows that were reported and not collected; they make the session fail.
        unreported: what could not be read or written for the report files; it makes the session fail.
    """

    def __init__(self, context: SessionContext) -> None:
        self.context = context
        self.collector = Collector(context, self.plan, self.run)
        self.records = SessionRecords(context)
        self.gaps: Sequence[Gap] = []
        self.paths: list[str] = []
        self.unaccounted: list[str] = []
        self.unreported: list[str] = []
        self.runner = RowRunner(context, self._take_arrived)
        #: Signatures of --prof-path without a row, by kernel type.
        self.unmatched: Counter[str] = Counter()
        #: The cases that may be collected, by id; None before pytest has selected them.
        self._by_id: dict[str, SessionCase] | None = None
        #: The device of the last record.
        self._device: DeviceDescription | None = None

    @property
    def cases(self) -> list[SessionCase]:
        """Each row of the session; none before the plan is made."""
        return self.context.plan.cases if self.context.plan is not None else []

    @cached_property
    def is_requested(self) -> Callable[[str, str], bool]:
        """Whether files and -k ask for a row, by kernel type and id; known after the collection."""
        return requested_rows(self.context.config, self.collector.known_replays())

    def requested(self, fate: Fate) -> list[SessionCase]:
        """Returns the requested cases of a fate."""
        return [case for case in of_fate(self.cases, fate) if self.is_requested(case.kernel_type, case.id)]

    def case_of(self, nodeid: str) -> SessionCase | None:
        """Returns the case of a node id; None for other tests, and before pytest has selected the rows."""
        return self._by_id.get(case_id_in(nodeid)) if self._by_id is not None else None

    def plan(self) -> Plan:
        """Step 1: returns the plan, made on first use. From then on the session holds the database."""
        context = self.context
        if context.plan is None:
            context.plan = plan_session(context) if not context.is_worker else context.received_plan()
            if context.runs_rows and not context.is_controller and of_fate(context.plan.cases, Fate.TO_RUN):
                self.runner.begin()
        return context.plan

    def select(self, nodeids: Iterable[str]) -> bool:
        """Step 2: takes the node ids of the rows to run, and returns whether it is the first time.

        xdist's controller gets the same ids from each worker.

        Raises:
            pytest.UsageError: durations would be replaced that do not compare with those of this session.
        """
        context, plan = self.context, self.context.plan
        if plan is None or self._by_id is not None:
            return False
        nodeids = list(nodeids)
        if not plan.error and context.settings.prof_path is None:
            known = {case_id_in(nodeid) for nodeid in nodeids if lacks_replay(nodeid)}
            for table in plan.tables.values() if known else ():
                if any(case.id in known for case in table.cases):
                    # A worker of xdist has admitted them too.
                    table.admit()
        else:
            known = set()
        self._by_id = {case.id: case for case in of_fate(plan.cases, Fate.TO_RUN)}
        for case_id in map(case_id_in, nodeids):
            if case_id in self._by_id:
                self._by_id[case_id].account = WITHOUT_REPLAY if case_id in known else NOT_RUN
        if not plan.error and context.settings.writes:
            specs = {name: replay_spec(function) for name, function in self.collector.known_replays().items()}
            in_groups = {name for name, spec in specs.items() if spec is not None and spec.group is not None}
            for number, own in enumerate(context.databases):
                if own.provenance is None:
                    continue
                try:
                    plan.notes += check_replaced(own.provenance, context.settings, plan, in_groups, number)
                except OpAtlasError as error:
                    # A plan with an error gets no report of rows that were not run.
                    plan.error = str(error)
                    raise pytest.UsageError(plan.error) from None
        return True

    def run(self, item: pytest.Function) -> None:
        """Step 3: runs a row on the device, and passes, skips or fails its test."""
        __tracebackhide__ = True
        row = row_of(item)
        assert row is not None
        # A plugin may run the row again, and the second run may find no device.
        item.stash[_OUTCOME] = None
        if row.given_up:
            pytest.fail(f"{row.place}: {row.given_up}", pytrace=False)
        outcome = item.stash[_OUTCOME] = self.runner.run(item)
        if outcome.status in (Status.MEASURED, Status.CHECKED) and outcome.judged is None:
            return
        message = f"{outcome.status}: {row.place}: {outcome.explanation}"
        if outcome.status in (Status.UNSUPPORTED, Status.SKIPPED):
            pytest.skip(message)
        if outcome.judged is not None and not outcome.judged.passed and not self.context.settings.strict:
            # The candidate does not pass, and the session did its work.
            pytest.xfail(message)
        if outcome.status not in (Status.MEASURED, Status.CHECKED):
            pytest.fail(f"{message}\n{outcome.detail}".rstrip(), pytrace=False)

    def record(self, item: pytest.Item, row: SessionCase, call: pytest.CallInfo[None]) -> RowNote:
        """Step 4: journals the outcome of a phase of a row's test. Returns the note for pytest's report."""
        cut_printed(item, call)
        note: RowNote = {}
        is_call = call.when == "call"
        if is_call and row.given_up:
            note["given_up"] = True
        outcome = self._outcome(item, row, call)
        if outcome is None:
            return note
        arrived = item.stash.get(_ARRIVED, None) if is_call else None
        record = arrived[0] if arrived else self._record_of(row, outcome)
        values = record.to_json()
        device = self.runner.describe() if is_call else None
        is_looked_up = self.context.settings.prof_path is not None
        if arrived:
            is_kept = arrived[1]
        else:
            # A row that a profile does not have keeps its state.
            keeps_state = is_looked_up and outcome.status is Status.SKIPPED
            is_kept = keeps_state or self.records.append(values, device, row.target)
        if not is_kept:
            # The row counts as not run.
            note["not_kept"] = True
            return note
        note["record"] = values if self.context.is_worker else record
        if device is not None:
            note["on"] = device.name
            properties = properties_of(record, row.captured_us)
            if (stored := self._stored_us(row)) is not None:
                properties.append(("stored_us", stored))
            set_properties(item, properties)
        if device is not None and device is not self._device:
            note["device"] = asdict(device)
            self._device = device
        return note

    def receive(self, report: pytest.TestReport) -> None:
        """Step 5, in the main process, before a plugin shows the report: writes what became of a row into its case.

        A plugin may run a row again: its last report counts.
        """
        note = note_of(report)
        if note is None:
            return
        word, record = outcome_of_report(report), record_of(report)
        if word == "xfailed":
            account = XFAILED
        else:
            account = GIVEN_UP if "given_up" in note else record.status.value if record is not None else ""
        if not account:
            return
        case = self.case_of(report.nodeid)
        if case is None or not case.account:
            self.unaccounted.append(f"{case_id_in(report.nodeid)} was reported as {account}, but not collected")
            return
        case.account = account
        if record is None:
            return
        measurement, figures = record.measurement, None
        if measurement is not None and "on" in note:
            figures = summarize_row(record, device_peak(note["on"]), case.captured_us)
            figures = replace(figures, kernel_type=case.rows.label)
        case.result = CaseResult(
            word,
            record.status,
            record.reason,
            figures,
            measurement.assumptions if measurement is not None else (),
            record.judged.get(ERROR_CLASS, "").partition("/")[0],
            round(stored_us(record), 4) if measurement is not None else None,
            self._stored_us(case),
            report.start,
            report.stop,
        )

    def _stored_us(self, row: SessionCase) -> float | None:
        """Returns the replayed duration in the database, with which --read-only compares; None without one."""
        replayed = row.row.replayed if self.context.settings.read_only else None
        return replayed.us if replayed is not None else None

    def keep(self, report: pytest.TestReport) -> None:
        """Step 5, after all plugins have shown the report: keeps the record for the merge."""
        note = note_of(report)
        if note is not None:
            self.records.take(note)

    def complete(self, session: pytest.Session) -> None:
        """Before the merge: adds the records of rows whose tests did not run, and judges a session without rows."""
        for item, outcome in self.runner.unreached(session.items):
            row, arrived = row_of(item), item.stash.get(_ARRIVED, None)
            assert row is not None
            if arrived is None:
                self.records.append(self._record_of(row, outcome).to_json(), self._device, row.target)
            else:
                self.records.add_device(arrived[2])
        if not self.context.is_worker:
            self._set_exit_status(session)
            if self.context.runs_rows and self.context.profile is not None:
                add_unmatched(self, session)

    def merge(self) -> None:
        """Step 6: merges the records into the CSVs. A worker leaves its journal to the controller."""
        if self.context.is_worker:
            self.records.hand_over(self.context.worker_output)
        elif self.context.stopped_now:
            self.records.close_journals()
        elif self.context.runs_rows:
            merged = self.records.merge()
            lost = {case.id: case for case in self.cases if case.account == NOT_RUN}
            for suffix, record in merged if lost else ():
                # The report was lost with its worker.
                case = lost.get(make_case_id(record.kernel_type, record.signature) + suffix)
                if case is not None:
                    case.account = record.status.value

    def report(self, session: pytest.Session) -> None:
        """Step 7: writes the report files, and decides the exit status of the session."""
        if self.context.is_worker or self.context.stopped_now or not self.context.runs_rows:
            return
        write_reports(self)
        problems = [*self.records.problems, *self.unaccounted, *self.unreported]
        is_wrong = bool(problems or ledger(self.cases)[NOT_RUN])
        # After INTERNAL_ERROR pytest shows no summary, and the user would not learn of the problems.
        if is_wrong and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        # pytest calls any early end "interrupted"; here the word means Ctrl-C.
        if session.exitstatus == pytest.ExitCode.INTERRUPTED and self.context.failed_early:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def not_replayable(self) -> Counter[str]:
        """Returns the number of collected rows whose kernel type has no replay, by kernel type."""
        return Counter(case.kernel_type for case in self.cases if case.account == WITHOUT_REPLAY)

    @property
    def has_written(self) -> bool:
        """Whether the merge changed a CSV; --prof-path may add rows although no row was run."""
        merged = self.records.merged
        return merged is not None and bool(merged.added.total() or merged.updated.total() or merged.unmatched)

    def close(self) -> None:
        """Releases the device and the database."""
        self.runner.close()
        self.context.close()

    def _set_exit_status(self, session: pytest.Session) -> None:
        """Sets the exit status of a session that ran no row, or that could not read a file or merge a journal."""
        plan = self.context.plan
        if plan is None or session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return
        if plan.problems or plan.is_incomplete:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            # A condition on the outcome that no row meets is success; another condition may be wrong.
            where = self.context.settings.where
            is_of_outcome = where is not None and where.is_of_outcome
            # A shard of few rows may be empty, which is success.
            if (
                self.requested(Fate.LEFT_OUT)
                or self.requested(Fate.OTHER_SHARD)
                or (is_of_outcome and self.requested(Fate.NOT_SELECTED))
            ):
                session.exitstatus = pytest.ExitCode.OK

    def _outcome(self, item: pytest.Item, row: SessionCase, call: pytest.CallInfo[None]) -> RowOutcome | None:
        """Returns what became of a row in a phase of its test; None where the row was not run, or has no replay."""
        if call.when != "call":
            is_skipped = call.excinfo is not None and call.excinfo.errisinstance(pytest.skip.Exception)
            if call.excinfo is None or not is_skipped or lacks_replay(item.nodeid):
                return None
            return outcome_of(MissingPrecondition(str(call.excinfo.value)))
        outcome = item.stash.get(_OUTCOME, None)
        is_ended = row.given_up or self.context.failed_early
        if outcome is None and self.context.settings.in_process and call.excinfo and not is_ended:
            # With --in-process the body's own exception reaches pytest, for a debugger.
            outcome = outcome_of(call.excinfo.value)
            if outcome.status is Status.DEVICE_ERROR:
                self.context.stop("the device reported an error, and --in-process cannot replace its process")
        return outcome

    def _take_arrived(self, item: pytest.Function, outcome: RowOutcome, device: DeviceDescription) -> None:
        """Writes an outcome of a cluster to the journal, before pytest reaches its row."""
        row = row_of(item)
        assert row is not None
        # Its host is a fact of a device of a cluster.
        record = self._record_of(row, outcome, str(device.facts.get("host", "")))
        item.stash[_ARRIVED] = record, self.records.append(record.to_json(), device, row.target), device

    def _record_of(self, row: SessionCase, outcome: RowOutcome, host: str = "") -> Record:
        cells = row.cells
        return Record(
            kernel_type=row.kernel_type,
            signature=signature(row.kernel_type, cells),
            cells=cells,
            status=outcome.status,
            reason=outcome.explanation,
            run_id=self.context.run_id,
            finished_at=time.time(),
            measurement=outcome.measurement,
            judged=outcome.judged.cells if outcome.judged is not None else {},
            host=host,
        )
