"""What a session prints: its plan before rows run, and what became of the rows at the end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from opatlas.model.schema import Status
from opatlas.model.signature import case_id_in
from opatlas.progress import speed
from opatlas.report.row_summary import microseconds_text, noise_text, terminal_tables
from opatlas.show.output import UNLIMITED
from opatlas.text import pluralize, printable_lines, terminal_columns, wrap

from .interrupts import STOPPED, Interrupts, kept_lines
from .ledger import GIVEN_UP, WITHOUT_REPLAY, XFAILED
from .plan import Plan
from .plan_lines import continuation, crowded_folders, next_steps, nothing_to_do, plan_lines
from .pytest_internals import fitted
from .requested_rows import RequestedRows
from .results import SessionResults
from .rivals import comparison_lines
from .row_note import DURATION_US, STD_US, STORED_US, note_of
from .run_manifest import disturbances, flush_notes
from .selection import meant
from .session_context import SessionContext
from .settings import benchmarks_off

_SHOWN = 5
_MOST_COMPARED = 20


class _Failure(str):
    """A line about a failure, red on a terminal."""


class SessionSummary:
    """Prints the plan and the summary. Used in the main process of a session."""

    def __init__(self, results: SessionResults, interrupts: Interrupts) -> None:
        self._results = results
        self._interrupts = interrupts
        self._context = results.context
        self._collector = results.collector
        self._records = results.records
        self._ledger = results.ledger
        self._tally = results.tally
        self._keyword: str = results.context.config.option.keyword
        self._plan_printed = False

    def plan_lines(self) -> list[str]:
        """Returns what is known before rows run, once: xdist's controller asks for each worker."""
        plan = self._context.plan
        if plan is None or plan.error or self._plan_printed:
            return []
        self._plan_printed = True
        return self._plan_lines(plan, self._ledger.to_run)

    def _plan_lines(self, plan: Plan, selected: int) -> list[str]:
        settings, requested = self._context.settings, self._requested_rows()
        without_replay = self._results.not_replayable()
        lines = plan_lines(plan, settings, self._collector.known_replays(), selected, requested, without_replay)
        if selected and settings.prof_path is None and not settings.collect_only:
            found = disturbances(settings.devices, *self._context.surroundings.at_start(settings.devices))
            lines += [f"opatlas: this disturbs durations: {', '.join(found)}"] if found else []
            lines += [f"opatlas: {note}" for note in flush_notes(settings)]
        return [fitted(self._context.config, line) for line in lines]

    def set_exit_status(self, session: pytest.Session) -> None:
        """Sets the exit status of a session that ran no row, or that could not read a file or merge a journal."""
        plan = self._context.plan
        if plan is None or session.exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
            return
        if plan.problems or any(recovered.incomplete for prepared in plan.prepared for recovered in prepared.recovered):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        elif session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
            requested = self._requested_rows()
            # A condition on the status that no row meets is success; another condition may be wrong.
            where = self._context.settings.where
            no_row_has_status = where is not None and where.is_of_status and requested.not_selected(plan)
            unlisted = plan.is_empty and self._context.settings.workload.starter_unlisted
            # A shard of few rows may be empty, which is success.
            if unlisted or requested.left_out(plan) or requested.in_other_shards(plan) or no_row_has_status:
                session.exitstatus = pytest.ExitCode.OK

    def print(self, terminal: pytest.TerminalReporter, status: int) -> None:
        """Prints the summary; `status` is the exit status of the session."""
        plan, is_quiet = self._context.plan, terminal.config.option.verbose < 0
        if plan is not None and plan.error_status == pytest.ExitCode.TESTS_FAILED:
            for line in plan.error.splitlines():
                terminal.write_line(fitted(terminal.config, f"opatlas: {line}"), red=True)
        if plan is None or not self._context.runs_rows:
            return
        terminal.ensure_newline()
        if self._tally.figures and not is_quiet:
            terminal.section("durations", sep="=")
            for line in terminal_tables(self._tally.figures.values(), terminal_columns()):
                terminal.write_line(printable_lines(line))
        tally = self._tally
        width = terminal_columns() if terminal.isatty else UNLIMITED
        if compared := list(comparison_lines(self._context.settings, plan, tally.figures, tally.hosts, width)):
            terminal.section("comparison", sep="=")
            for line in compared:
                terminal.write_line(fitted(terminal.config, line))
        terminal.section("OpAtlas", sep="=")
        for line in self._summary(plan):
            terminal.write_line(fitted(terminal.config, line), red=isinstance(line, _Failure))
        if status == pytest.ExitCode.OK and terminal.isatty and not is_quiet:
            for line in next_steps(self._context.settings, measured=self._tally.outcomes["passed"]):
                terminal.write_line(fitted(terminal.config, line))

    def _requested_rows(self) -> RequestedRows:
        return RequestedRows(self._context.config, self._collector)

    def _summary(self, plan: Plan) -> Iterator[str]:
        if self._interrupts.now:
            yield self._ledger.line()
            yield from kept_lines(self._context, "stopped at once")
            return
        counts = self._ledger.counts()
        if not counts.keys() - {WITHOUT_REPLAY}:
            merged = self._records.merged
            if merged is None or not (merged.added.total() or merged.updated.total()):
                yield from self._nothing_run_lines(plan)
            if not self._results.has_written():
                if counts:
                    yield self._ledger.line()
                yield from self._problem_lines(plan)
                return
        seconds = self._tally.running_time.seconds
        facts = self._results.facts()
        if counts:
            statuses = [status for status in map(Status.from_cell, counts) if status is not None]
            yield (_Failure if any(status.expected_to_fail for status in statuses) else str)(self._ledger.line())
        rows, unit = sum(facts.statuses.values()), self._context.settings.unit
        if rows:
            run = "run" if self._context.settings.prof_path is None else "looked up"
            yield f"{pluralize(rows, unit)} {run} in {seconds:.1f} s ({speed(rows / seconds, f'{unit}s')})"
            yield from self._tally.running_time.waiting_lines()
        yield from self._tally.verdict_lines()
        if self._context.stop_reason not in ("", STOPPED):
            yield _Failure(f"stopped: {self._context.stop_reason}")
        yield from self._results.quality()
        yield from self._not_run_lines(plan)
        yield from self._earlier_lines()
        merged = self._records.merged
        if merged is not None and (rows or self._results.has_written()):
            updated, added, marked = (counts.total() for counts in (merged.updated, merged.added, merged.marked))
            done = "written back" if self._context.settings.writes else "would be written back (--dry-run)"
            yield f"{done}: {updated} updated, {added} added, {marked} marked, {len(merged.pruned)} pruned"
            for database in self._records.pruned_in:
                restored = f"`opatlas history {database.path} --restore pruned` brings them back"
                yield f"pruned rows are in {database.pruned_dir}: {restored}"
            if merged.unmatched:
                yield self._context.settings.workload.unmatched(len(merged.unmatched))
            if merged.of_siblings:
                kernels = pluralize(
                    len(merged.of_siblings),
                    "kernel that ran for a row of a sibling type has",
                    "kernels that ran for rows of sibling types have",
                )
                yield f"{kernels} no row: --update-mode=all adds these rows"
            if merged.repeated:
                rows_again = pluralize(merged.repeated, "repeated row")
                yield f"{rows_again}: given the duration of the earlier row of the same signature"
        yield from self._error_lines()
        yield from self._gap_lines()
        yield from self._problem_lines(plan)
        yield from self._model_lines()
        targets = self._context.settings.targets
        yield from self._context.settings.workload.summary_lines([(each.implementation, each.path) for each in targets])
        paths = [targets[number].path for number in plan.named_targets(len(targets))]
        crowded = crowded_folders(paths)
        yield from (f"database: {path}" for path in paths if path.parent not in crowded)
        yield from (f"databases: {count:,} in {folder}" for folder, count in crowded.items())
        for path in self._results.paths:
            yield f"report: {path}"

    def _nothing_run_lines(self, plan: Plan) -> Iterator[str]:
        settings = self._context.settings
        unit = settings.unit
        requested, known = self._requested_rows(), self._collector.known_replays()
        replayable = [table for table in plan.tables.values() if table.kernel_type in known]
        if lines := list(nothing_to_do(requested, plan, settings)):
            yield from lines
        elif not (self._ledger.without_replay or benchmarks_off(self._context.config)) and (
            example := next((case for table in replayable for case in table.cases.values()), None)
        ):
            cases = pluralize(plan.cases_of(known), unit)
            near = meant(self._keyword, [table.kernel_type for table in plan.tables.values()])
            yield wrap(f"none of {cases} was selected{near}; -k takes parts of names such as {example}", indent=0)

    def _model_lines(self) -> Iterator[str]:
        """Yields what models achieved in all sessions of the run."""
        settings = self._context.settings
        if settings.models is not None:
            # Sessions without models do not import the client of endpoints.
            from .models import summary_lines

            yield from summary_lines(settings.models, settings.models_folder)

    def _not_run_lines(self, plan: Plan) -> Iterator[str]:
        """Yields how to go on after a session that stopped early."""
        if not_run := self._ledger.not_run():
            yield continuation(plan, self._context.settings, not_run, self._context.run_id)

    def _problem_lines(self, plan: Plan) -> Iterator[str]:
        merged = self._records.merged
        failed = merged is None or merged.problems
        for problem in self._records.problems:
            yield _Failure(f"{'NOT WRITTEN BACK' if failed else 'written back, but'}: {problem}")
        for problem in self._ledger.problems:
            yield _Failure(f"THE ROWS DO NOT ADD UP: {problem}")
        if plan.problems:
            # The reasons are printed before the rows.
            yield _Failure("not all files were read, or not all of their lines: see `not read:` before the rows")
        for problem in self._results.problems:
            yield _Failure(f"not read or written: {problem}")

    def _earlier_lines(self) -> Iterator[str]:
        """Yields what became of the rows that earlier sessions failed to measure."""
        passed = self._tally.outcomes["xpassed"]
        if passed:
            yield f"{pluralize(passed, self._context.settings.unit)} measured that had failed before"
        accounts = self._ledger.counts()
        given_up = accounts[GIVEN_UP] + accounts[XFAILED] - self._tally.outcomes["xfailed"]
        if given_up:
            rows = pluralize(given_up, self._context.settings.unit)
            yield f"{rows} not run, after crashes or timeouts in sessions before (--runxfail)"
        unresolved = self._ledger.unresolved()
        if unresolved:
            counts = ", ".join(f"{n} {status}" for status, n in unresolved.most_common())
            yield f"left as earlier sessions left them: {counts}"

    def _error_lines(self) -> Iterator[str]:
        causes = self._tally.causes()
        if causes:
            yield _Failure("not measured, by kernel type and cause:")
            for cause in causes[:_SHOWN]:
                yield wrap(f"{cause.rows:5d}  {cause.kernel_type}: {cause.reason}", indent=2)
            if len(causes) > _SHOWN:
                yield f"         and {pluralize(len(causes) - _SHOWN, 'other cause')}, see the report"

    def _gap_lines(self) -> Iterator[str]:
        outside = [gap for gap in self._results.gaps if gap.outside]
        if self._results.gaps and self._results.not_comparable:
            yield f"{pluralize(len(self._results.gaps), 'row')} with both durations, {self._results.not_comparable}"
        elif outside:
            device = self._records.device_name
            of_all = pluralize(len(self._results.gaps), "duration")
            are = "is" if len(outside) == 1 else "are"
            yield f"{len(outside)} of {of_all} on {device} {are} 20 % or more off the captured ones; worst:"
            for gap in outside[:_SHOWN]:
                captured = f"; captured: {gap.populations}" if gap.populations else ""
                yield wrap(f"{gap.ratio:8.2f} x  {gap.kernel_type} {gap.input_shapes}{captured}", indent=2)


@dataclass(frozen=True)
class ComparedRow:
    """The stored duration of a row and the new one, in microseconds, and the noise of the new one."""

    case_id: str
    stored_us: float
    new_us: float
    noise: float | None

    @property
    def ratio(self) -> float:
        """The new duration divided by the stored duration."""
        return self.new_us / self.stored_us

    def __str__(self) -> str:
        new = f"{microseconds_text(self.new_us)} {noise_text(self.noise)}".rstrip()
        return f"{f'{self.ratio:.3f} x':9}  {new:>17}, stored {microseconds_text(self.stored_us):>10}"


class StoredComparison:
    """Stored and new durations of the rows of a session with --read-only. Used in the main process."""

    def __init__(self, context: SessionContext, verbosity: int) -> None:
        self._context = context
        self._verbosity = verbosity
        #: By case id: another plugin may run a row again.
        self._compared: dict[str, ComparedRow] = {}
        self._without: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if compared := _compared(report):
            self._compared[compared.case_id] = compared
        elif _measured(report):
            self._without.add(report.nodeid)

    def pytest_report_teststatus(self, report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
        """Shows the ratio of the durations in the line of a row, with -v."""
        if self._verbosity <= 0 or not isinstance(report, pytest.TestReport) or not report.passed:
            return None
        compared = _compared(report)
        if compared is None:
            return None
        return "passed", "", f"PASSED {compared.ratio:.3f} x of {microseconds_text(compared.stored_us)} stored"

    def print(self, terminal: pytest.TerminalReporter) -> None:
        """Prints the rows whose durations differ most."""
        plan = self._context.plan
        if plan is not None and not plan.error:
            for line in self._lines():
                terminal.write_line(fitted(terminal.config, line))

    def _lines(self) -> Iterator[str]:
        unit = self._context.settings.unit
        if self._compared:
            yield f"{pluralize(len(self._compared), unit)} beside their stored durations, the furthest apart first:"
            most = None if self._verbosity > 0 else _MOST_COMPARED
            for compared in sorted(self._compared.values(), key=lambda each: -abs(math.log(each.ratio)))[:most]:
                yield f"{compared}  {compared.case_id}"
            if most is not None and len(self._compared) > most:
                yield f"and {pluralize(len(self._compared) - most, 'more', 'more')} (-v shows all)"
        if self._without:
            yield f"{pluralize(len(self._without), unit)} measured without a stored duration"
        yield "--read-only: nothing was written into the database"


def _measured(report: pytest.TestReport) -> bool:
    return note_of(report) is not None and report.when == "call" and DURATION_US in dict(report.user_properties)


def _compared(report: pytest.TestReport) -> ComparedRow | None:
    """Returns the durations of the row of a report; None unless the row has both."""
    properties = dict(report.user_properties)
    stored, taken = properties.get(STORED_US), properties.get(DURATION_US)
    if not _measured(report) or not isinstance(stored, float) or not isinstance(taken, float):
        return None
    std = properties.get(STD_US)
    noise = std / taken if isinstance(std, float) and properties.get("samples") != 1 else None
    return ComparedRow(case_id_in(report.nodeid), stored, taken, noise)
