"""What a session tells on the terminal: of its plan before rows run, and of its rows at the end."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from opatlas.capture.cases import missing_replay_lines
from opatlas.model.schema import Status
from opatlas.progress import speed
from opatlas.report.row_summary import terminal_tables
from opatlas.store.journal import count_run_records
from opatlas.text import (
    columns,
    counted,
    folded,
    shown,
)

from .asked_for import AskedFor
from .collector import Collector, row_of
from .interrupt import STOPPED, Interrupts
from .plan import Plan
from .plan_lines import after_success, going_on, nothing_to_do, plan_lines
from .records import WriteBack
from .report import GIVEN_UP, XFAILED, Ledger, Report, ReportTally
from .run_manifest import disturbances, flush_notes
from .selection import meant
from .session_context import BenchSession

_SHOWN = 5


class _Failure(str):
    """A line about what failed, shown in red on a terminal."""


class SessionSummary:
    """Prints the plan and the summary. Lives in the only process of a session, or in xdist's controller."""

    def __init__(
        self,
        session: BenchSession,
        collector: Collector,
        interrupts: Interrupts,
        written: WriteBack,
        ledger: Ledger,
        tally: ReportTally,
        report: Report,
        keyword: str,
    ) -> None:
        """`keyword` is what -k says: with it, kernel types that cannot be replayed were not asked for."""
        self._session = session
        self._collector = collector
        self._interrupts = interrupts
        self._written = written
        self._ledger = ledger
        self._tally = tally
        self._report = report
        self._keyword = keyword
        self._plan_told = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any) -> None:
        """What is known before rows run; where there is no controller, pytest asks for it."""
        plan = self._session.plan_if_made
        terminal = node.config.pluginmanager.get_plugin("terminalreporter")
        if plan is None or terminal is None or self._plan_told:
            return
        self._plan_told = True
        terminal.ensure_newline()
        if terminal.isatty:
            # xdist leaves the line unfinished that counts its workers, and goes on with it below.
            terminal.rewrite("", erase=True)
            terminal.rewrite("")
        for line in self._plan_lines(node.config, plan, self._ledger.collected):
            terminal.write_line(line)

    def pytest_report_collectionfinish(self, config: pytest.Config, items: Sequence[pytest.Item]) -> list[str]:
        plan = self._session.plan_if_made
        if plan is None or plan.error:
            return []
        return self._plan_lines(config, plan, sum(row_of(item) is not None for item in items))

    def _plan_lines(self, config: pytest.Config, plan: Plan, selected: int) -> list[str]:
        settings, asked_for = self._session.settings, AskedFor(config, self._collector)
        lines = plan_lines(plan, settings, self._collector.known_replays(), selected, asked_for)
        if selected and settings.prof_path is None and not settings.collect_only:
            found = disturbances(settings.devices, *self._session.surroundings.at_start(settings.devices))
            lines += [f"opatlas: this disturbs durations: {', '.join(found)}"] if found else []
            lines += [f"opatlas: {note}" for note in flush_notes(settings)]
        return list(map(shown, lines))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Having nothing to do is success; a file that could not be read, or a journal not merged, is not."""
        plan = self._session.plan_if_made
        if plan is None or session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return
        if plan.problems or any(recovered.incomplete for recovered in plan.prepared.recovered):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            asked_for = AskedFor(session.config, self._collector)
            if self._session.settings.prof_path is None and asked_for.without_replay(plan):
                # Rows were selected, and none of them can be run.
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
                return
            # Statuses change by themselves; an expression of which no row is true may well be wrong.
            where = self._session.settings.where
            no_row_has_status = where is not None and where.is_of_status and asked_for.not_selected(plan)
            # Of few rows a shard may have none, and the machine that runs it has done what it was told.
            if asked_for.left_out(plan) or asked_for.elsewhere(plan) or no_row_has_status:
                session.exitstatus = pytest.ExitCode.OK

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: pytest.ExitCode, config: pytest.Config
    ) -> None:
        plan = self._session.plan_if_made
        if plan is None or plan.error or self._session.settings.collect_only:
            return
        terminalreporter.ensure_newline()
        if config.option.verbose >= 0 and self._tally.figures:
            terminalreporter.section("durations", sep="=")
            for line in terminal_tables(self._tally.figures.values(), columns()):
                terminalreporter.write_line(shown(line))
        terminalreporter.section("OpAtlas", sep="=")
        for line in self._summary(config):
            terminalreporter.write_line(shown(line), red=isinstance(line, _Failure))
        if exitstatus == pytest.ExitCode.OK and terminalreporter.isatty and config.option.verbose >= 0:
            for line in after_success(self._session.settings, measured=self._tally.outcomes["passed"]):
                terminalreporter.write_line(shown(line))

    def _summary(self, config: pytest.Config) -> Iterator[str]:
        plan = self._session.plan_if_made
        assert plan is not None
        if self._interrupts.now:
            yield from self._stopped_at_once_lines()
            return
        counts = self._ledger.counts()
        if not counts:
            merged = self._written.merged
            if merged is None or not (merged.added.total() or merged.updated.total()):
                yield from self._nothing_run_lines(config, plan)
            if not self._report.has_written():
                yield from self._problem_lines(plan)
                return
        seconds = self._tally.running_time.seconds
        facts = self._report.facts()
        if counts:
            statuses = [status for status in map(Status.of_cell, counts) if status is not None]
            yield (_Failure if any(status.expected_to_fail for status in statuses) else str)(self._ledger.line())
        rows, unit = sum(facts.statuses.values()), self._session.settings.unit
        if rows:
            run = "run" if self._session.settings.prof_path is None else "looked up"
            yield f"{counted(rows, unit)} {run} in {seconds:.1f} s ({speed(rows / seconds, f'{unit}s')})"
            yield from self._tally.running_time.waiting_lines()
        if self._session.stop_reason not in ("", STOPPED):
            yield _Failure(f"stopped: {self._session.stop_reason}")
        yield from self._report.quality()
        yield from self._not_run_lines(plan)
        yield from self._earlier_lines()
        merged = self._written.merged
        if merged is not None and (rows or self._report.has_written()):
            updated, added, marked = (counts.total() for counts in (merged.updated, merged.added, merged.marked))
            yield f"written back: {updated} updated, {added} added, {marked} marked, {len(merged.pruned)} pruned"
            if merged.pruned:
                folder = self._session.database.pruned_dir
                yield f"pruned rows are in {folder}: `opatlas unprune {self._session.database.path}` brings them back"
            if merged.unmatched and self._session.settings.messages is not None:
                yield f"{counted(len(merged.unmatched), 'message')} not measured, and so without a row"
            elif merged.unmatched:
                match = counted(len(merged.unmatched), "record matches", "records match")
                yield f"{match} no row of the database: not added"
            if merged.of_siblings:
                kernels = counted(
                    len(merged.of_siblings),
                    "kernel that ran for a row of a sibling type has",
                    "kernels that ran for rows of sibling types have",
                )
                yield f"{kernels} no row: --update-mode=all adds it"
            if merged.repeated:
                rows_again = counted(merged.repeated, "repeated row")
                yield f"{rows_again}: given the duration of the earlier row of the same signature"
        yield from self._not_replayable_lines()
        yield from self._error_lines()
        yield from self._gap_lines()
        failed = merged is None or merged.problems
        for problem in self._written.problems:
            yield _Failure(f"{'NOT WRITTEN BACK' if failed else 'written back, but'}: {problem}")
        for problem in self._ledger.problems:
            yield _Failure(f"THE ROWS DO NOT ADD UP: {problem}")
        yield from self._problem_lines(plan)
        yield f"database: {os.path.abspath(self._session.settings.database)}"
        for path in self._report.paths:
            yield f"report: {path}"

    def _nothing_run_lines(self, config: pytest.Config, plan: Plan) -> Iterator[str]:
        settings = self._session.settings
        unit = settings.unit
        asked_for, known = AskedFor(config, self._collector), self._collector.known_replays()
        replayable = {name: table for name, table in plan.tables.items() if name in known}
        if missing := asked_for.without_replay(plan):
            yield from self._without_replay(missing)
        elif lines := list(nothing_to_do(asked_for, plan, settings)):
            yield from lines
        elif example := next((case for table in replayable.values() for case in table.cases.values()), None):
            cases = counted(plan.cases_of(known), unit)
            near = meant(self._keyword, plan.tables)
            yield folded(f"no {unit} was selected, of {cases}{near}; a name of one, for -k: {example}", indent=0)

    def _stopped_at_once_lines(self) -> Iterator[str]:
        yield self._ledger.line()
        if self._session.settings.read_only:
            return
        database = self._session.database
        try:
            kept = counted(count_run_records(database, self._session.run_id), "record stays", "records stay")
        except OSError as error:
            kept = f"the records stay ({error.strerror})"
        yield f"stopped at once: {kept} in {database.journal_dir}; the next session on this database merges them"

    def _not_run_lines(self, plan: Plan) -> Iterator[str]:
        """How to go on where a session was stopped."""
        if not_run := self._ledger.not_run():
            yield going_on(plan, self._session.settings, not_run, self._session.run_id)

    def _problem_lines(self, plan: Plan) -> Iterator[str]:
        if plan.problems:
            # The reasons stand above the rows, and once is enough.
            yield f"{counted(len(plan.problems), 'file was', 'files were')} not read, as the lines before the rows say"
        for problem in self._report.problems:
            yield _Failure(f"not read or written: {problem}")

    def _earlier_lines(self) -> Iterator[str]:
        """What became of the rows that earlier sessions left without a measurement."""
        passed = self._tally.outcomes["xpassed"]
        if passed:
            yield f"{counted(passed, self._session.settings.unit)} measured that had failed before"
        accounts = self._ledger.counts()
        given_up = accounts[GIVEN_UP] + accounts[XFAILED] - self._tally.outcomes["xfailed"]
        if given_up:
            rows = counted(given_up, self._session.settings.unit)
            yield f"{rows} not run, after crashes or timeouts in sessions before (--retry-failed)"
        unresolved = self._ledger.unresolved()
        if unresolved:
            counts = ", ".join(f"{n} {status}" for status, n in unresolved.most_common())
            yield f"left as earlier sessions left them: {counts}"

    def _error_lines(self) -> Iterator[str]:
        causes = self._tally.causes()
        if causes:
            yield _Failure("not measured, by kernel type and cause:")
            for cause in causes[:_SHOWN]:
                yield folded(f"{cause.rows:5d}  {cause.kernel_type}: {cause.reason}", indent=2)
            if len(causes) > _SHOWN:
                yield f"         and {counted(len(causes) - _SHOWN, 'other cause')}, see the report"

    def _gap_lines(self) -> Iterator[str]:
        outside = [gap for gap in self._report.gaps if gap.outside]
        if self._report.gaps and self._report.not_comparable:
            yield f"{counted(len(self._report.gaps), 'row')} with both durations, {self._report.not_comparable}"
        elif outside:
            device = self._written.device_name
            of_all = counted(len(self._report.gaps), "duration")
            are = "is" if len(outside) == 1 else "are"
            yield f"{len(outside)} of {of_all} on {device} {are} 20 % or more off the captured ones; worst:"
            for gap in outside[:_SHOWN]:
                captured = f"; captured: {gap.populations}" if gap.populations else ""
                yield folded(f"{gap.ratio:8.2f} x  {gap.kernel_type} {gap.input_shapes}{captured}", indent=2)

    def _not_replayable_lines(self) -> Iterator[str]:
        missing = self._report.not_replayable()
        if missing and not self._keyword:
            yield from self._without_replay(missing)

    def _without_replay(self, missing: Counter[str]) -> Iterator[str]:
        plan = self._session.plan_if_made
        assert plan is not None
        yield from missing_replay_lines(missing, plan.captured_time_us(), self._collector.known_replays())
