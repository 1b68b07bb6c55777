"""The way of a row from its CSV to the device and back into the CSV, on one page.

`ReplaySession` has a method for each step. The hooks of `hooks.py` call them in this order:

1. `plan` reads the database and decides which rows are cases; the collector makes a test of each case.
2. `select` gets the cases that pytest selected, and refuses to replace durations that do not compare with new ones.
3. `run` sends a row to the device and passes, skips or fails its test.
4. `record` writes the outcome to the journal of this process, and attaches it to pytest's report as a `RowNote`.
5. `receive` gets the report in the main process: counts the row, then keeps its record for the merge.
6. `merge` brings the records of all journals into the CSVs, and accounts for every row.
7. `report` writes the report files and decides the exit status; `print_summary` prints what became of the rows.

With xdist the controller plans before the workers start, and merges and reports after they end; each worker runs and
records rows. Without xdist one process does everything.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict

import pytest

from opatlas.errors import OpAtlasError
from opatlas.row.record import Record
from opatlas.row.roofline import device_peak
from opatlas.row.signature import case_id_in
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription
from opatlas.run.job import RowOutcome
from opatlas.run.registry import replay_spec
from opatlas.show.row_summary import summarize_row

from .cluster import host_of
from .collector import Collector, lacks_replay, row_of
from .interrupts import STOPPED, Interrupts
from .ledger import NOT_RUN, Ledger
from .mixing import check_replaced
from .plan import Plan, PlannedRow
from .prof_path import UncollectedSamples
from .records import SessionJournal, SessionRecords
from .results import SessionResults
from .row_note import STORED_US, RowNote, cut_printed, note_of, properties_of, set_properties, waited_by
from .row_runner import RowRunner
from .session_context import SessionContext
from .session_plan import plan_session
from .summary import SessionSummary, StoredComparison
from .tally import OutcomeTally

_NO_PLAN = "replays were not asked for by name: with -n, name bench/ on the command line"
_OUTCOME = pytest.StashKey[RowOutcome | None]()
#: Seconds that the call of a row waited for its device, by FOR_OTHERS and FOR_OWN.
_WAITED = pytest.StashKey[dict[str, float]]()
#: The record of an outcome that arrived ahead of pytest, why the journal does not have it, and where it ran.
_ARRIVED = pytest.StashKey[tuple[Record, str, DeviceDescription] | None]()


class ReplaySession:
    """A session of replays in one process of pytest.

    Attributes:
        context: options, run, database and the request to stop.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.context = context = SessionContext(config)
        self.interrupts = Interrupts(context)
        self.collector = Collector(context, self.plan, self.run)
        self.journal = SessionJournal(context)
        self.tally = OutcomeTally()
        self.records = SessionRecords(context, self.journal)
        self.ledger = Ledger(context)
        self.results = SessionResults(context, self.collector, self.records, self.ledger, self.tally)
        self.summary = SessionSummary(self.results, self.interrupts)
        self.comparison = (
            StoredComparison(context, getattr(config.option, "verbose", 0)) if config.option.read_only else None
        )
        self._runner = RowRunner(context, self._launched, self._take_arrived)
        self._profile_rest = (
            UncollectedSamples(context, self.collector, self.records, self._runner) if config.option.prof_path else None
        )
        self._is_selected = False
        #: The devices of the records so far, by identity, and the last of them.
        self._devices: dict[int, DeviceDescription] = {}
        self._device: DeviceDescription | None = None

    def plan(self) -> Plan:
        """Step 1: returns the plan, made on first use. From then on the session holds the database."""
        context = self.context
        if context.plan is None:
            context.plan = plan_session(context) if not context.is_worker else context.shared.load_plan()
            context.plan = context.plan or Plan(error=_NO_PLAN)
        return context.plan

    def publish_plan(self) -> None:
        """Step 1 in xdist's controller, before the workers start. Raises pytest.UsageError where there is no plan."""
        plan = self.plan()
        if plan.error:
            raise pytest.UsageError(plan.error)
        try:
            self.context.shared.publish_plan(plan)
        except OpAtlasError as error:
            raise pytest.UsageError(str(error)) from None

    def select(self, nodeids: Iterable[str]) -> None:
        """Step 2: takes the node ids of the cases to run. xdist's controller gets the same ids from each worker.

        Raises:
            pytest.UsageError: the cases would replace durations that do not compare with those of this session.
        """
        context, plan = self.context, self.context.plan
        if plan is None or self._is_selected:
            return
        self._is_selected = True
        nodeids = list(nodeids)
        looked_up = plan.error or context.settings.prof_path is not None
        without_replay = set() if looked_up else {case_id_in(nodeid) for nodeid in nodeids if lacks_replay(nodeid)}
        for table in plan.tables.values():
            # A worker of xdist has admitted them too.
            table.admit(without_replay)
        # The ids of the plan, not equal ones: there may be very many.
        known = {case_id: case_id for case_id in plan.case_ids()}
        selected = {known[case_id] for case_id in map(case_id_in, nodeids) if case_id in known}
        if not plan.error and (context.settings.writes or context.settings.rehearses):
            specs = {name: replay_spec(function) for name, function in self.collector.known_replays().items()}
            in_groups = {name for name, spec in specs.items() if spec is not None and spec.group is not None}
            for number, own in enumerate(context.databases):
                if own.provenance is None:
                    continue
                judged = check_replaced(own.provenance, context.settings, plan, selected, in_groups, number)
                if judged.refusal:
                    # A plan with an error gets no report of rows that were not run.
                    plan.error = judged.refusal
                    raise pytest.UsageError(judged.refusal)
                plan.notes += judged.notes
        self.ledger.collect(selected, without_replay)

    def rows(self) -> RowRunner:
        """Returns what runs the rows."""
        return self._runner

    def prepare(self, item: pytest.Item) -> None:
        """Opens the device for a row. The time of opening belongs to no row."""
        self._runner.prepare(item)

    def run(self, item: pytest.Function) -> None:
        """Step 3: runs a row on the device, and passes, skips or fails its test."""
        __tracebackhide__ = True
        row = row_of(item)
        assert row is not None
        # A plugin may run the row again, and the second run may find no device.
        item.stash[_OUTCOME] = None
        if row.given_up:
            pytest.fail(f"{row.place}: {row.given_up}", pytrace=False)
        before = waited_by(self.context.waits)
        try:
            outcome = item.stash[_OUTCOME] = self._runner.run(item)
        finally:
            after = waited_by(self.context.waits)
            item.stash[_WAITED] = {who: after[who] - before[who] for who in after if after[who] > before[who]}
        message = f"{outcome.status}: {row.place}: {outcome.explanation}"
        if outcome.status in (Status.UNSUPPORTED, Status.SKIPPED):
            pytest.skip(message)
        if outcome.judged is not None and not outcome.judged.passed and not self.context.settings.strict:
            # The candidate does not pass, and the session did its work.
            pytest.xfail(message)
        if outcome.status not in (Status.MEASURED, Status.CHECKED):
            pytest.fail(f"{message}\n{outcome.detail}".rstrip(), pytrace=False)

    def record(self, item: pytest.Item, row: PlannedRow, call: pytest.CallInfo[None]) -> RowNote:
        """Step 4: journals the outcome of a phase of a row's test. Returns the note for pytest's report."""
        cut_printed(item, call)
        note: RowNote = {}
        is_call = call.when == "call"
        if is_call and row.given_up:
            note["given_up"] = True
        if is_call and (waited := item.stash.get(_WAITED, {})):
            note["waited"] = waited
        outcome = self._outcome(item, row, call)
        if outcome is None:
            return note
        arrived = item.stash.get(_ARRIVED, None) if is_call else None
        record = arrived[0] if arrived else self._new_record(row, outcome)
        note["record"] = record.to_json()
        targets = self.context.settings.targets
        note["kernel"] = record.kernel_type
        if len(targets) > 1:
            note["kernel"] += f" {targets[row.target].implementation.name}"
        device = self.rows().describe() if is_call else None
        if is_call:
            properties = properties_of(record, row.captured_us)
            if self.context.settings.read_only and (replayed := row.row.replayed) is not None:
                properties.append((STORED_US, replayed.us))
            set_properties(item, properties)
        if device is not None and record.measurement is not None:
            note["figures"] = summarize_row(record, device_peak(device.name), row.captured_us).to_json()
        note["target"] = row.target
        is_looked_up = self.context.settings.prof_path is not None
        if not (is_looked_up and outcome.status is Status.SKIPPED):
            # A row that a profile does not have keeps its state.
            note["not_saved"] = arrived[1] if arrived else self.journal.append(note["record"], device, row.target)
        if device is not None and device is not self._device:
            if id(device) not in self._devices and device != self._device:
                note["device"] = asdict(device)
            self._device = self._devices[id(device)] = device
        return note

    def receive(self, report: pytest.TestReport) -> None:
        """Step 5, in the main process, before a plugin shows the report: counts the row."""
        note = note_of(report)
        if note is not None:
            self.ledger.count(report, note)
            self.tally.count(report, note)

    def keep(self, report: pytest.TestReport) -> None:
        """Step 5, after all plugins have shown the report: keeps the record for the merge."""
        note = note_of(report)
        if note is not None:
            self.records.take(report, note)

    def complete(self, session: pytest.Session) -> None:
        """Before the merge: adds the records of rows whose tests did not run, and judges a session without rows."""
        for item, outcome in self._runner.unreached(session.items):
            row = row_of(item)
            arrived = item.stash.get(_ARRIVED, None)
            if arrived is not None:
                self.records.add_arrived(*arrived, row.target if row is not None else 0)
            elif row is not None:
                self.records.add(self._new_record(row, outcome), self._device, row.target)
        if not self.context.is_worker:
            self.summary.set_exit_status(session)
            if self._profile_rest is not None:
                self._profile_rest.take(session)

    def merge(self) -> None:
        """Step 6: merges the records into the CSVs. A worker leaves its journal to the controller."""
        if self.context.is_worker:
            self.records.hand_over(self.context.worker_output)
        elif self.interrupts.now:
            self.records.close_journals()
        elif self.context.runs_rows:
            self.ledger.settle(self.records.merge())

    def report(self, session: pytest.Session) -> None:
        """Step 7: writes the report files, and decides the exit status of the session."""
        if self.context.is_worker or self.interrupts.now or not self.context.runs_rows:
            return
        self.results.write()
        problems = [*self.records.problems, *self.ledger.problems, *self.results.problems]
        is_wrong = bool(problems or self.ledger.counts()[NOT_RUN])
        # After INTERNAL_ERROR pytest shows no summary, and the user would not learn of the problems.
        if is_wrong and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        # pytest calls any early end "interrupted"; here the word means Ctrl-C.
        if session.exitstatus == pytest.ExitCode.INTERRUPTED and self.context.stop_reason not in ("", STOPPED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def print_summary(self, terminal: pytest.TerminalReporter, status: int) -> None:
        """Step 7: prints what became of the rows."""
        self.summary.print(terminal, status)
        if self._profile_rest is not None:
            self._profile_rest.print(terminal)
        if self.comparison is not None:
            self.comparison.print(terminal)

    def close(self) -> None:
        """Releases the device and the database."""
        self._runner.close()
        self.context.close()

    def _outcome(self, item: pytest.Item, row: PlannedRow, call: pytest.CallInfo[None]) -> RowOutcome | None:
        """Returns what became of a row in a phase of its test; None where the row was not run, or has no replay."""
        if call.when != "call":
            is_skipped = call.excinfo is not None and call.excinfo.errisinstance(pytest.skip.Exception)
            is_skipped = is_skipped and not lacks_replay(item.nodeid)
            return RowOutcome(Status.SKIPPED, str(call.excinfo.value)) if call.excinfo and is_skipped else None
        outcome = item.stash.get(_OUTCOME, None)
        is_stopped = self.context.stop_reason not in ("", STOPPED)
        if outcome is None and self.context.settings.in_process and call.excinfo and not (row.given_up or is_stopped):
            # With --in-process the body's own exception reaches pytest, for a debugger.
            from opatlas.run.outcome import outcome_of

            outcome = outcome_of(call.excinfo.value)
            if outcome.status is Status.DEVICE_ERROR:
                self.context.stop("the device reported an error, and --in-process cannot replace its process")
        return outcome

    def _take_arrived(self, item: pytest.Function, outcome: RowOutcome, device: DeviceDescription) -> None:
        """Writes an outcome of a cluster to the journal, before pytest reaches its row."""
        row = row_of(item)
        assert row is not None
        record = self._new_record(row, outcome, host_of(device))
        item.stash[_ARRIVED] = record, self.journal.append(record.to_json(), device, row.target), device

    def _new_record(self, row: PlannedRow, outcome: RowOutcome, host: str = "") -> Record:
        return Record(
            kernel_type=row.kernel_type,
            signature=row.signature,
            cells=row.cells,
            status=outcome.status,
            reason=outcome.explanation,
            run_id=self.context.run_id,
            finished_at=time.time(),
            measurement=outcome.measurement,
            judged=outcome.judged.cells if outcome.judged is not None else {},
            host=host,
        )

    def _launched(self) -> None:
        """Writes the manifest, with the device: if this session is killed, the next session reads the profile."""
        self.journal.write_manifest(self.rows().describe())


#: The session of a process of pytest: `config.stash[SESSION]`.
SESSION = pytest.StashKey[ReplaySession]()
