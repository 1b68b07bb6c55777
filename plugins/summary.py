"""What a session prints: its plan before rows run, and what became of the rows at the end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from opatlas import formats
from opatlas.row.signature import case_id_in
from opatlas.row.status import Status
from opatlas.show.result import Column, Fields, Part, Table
from opatlas.show.row_summary import duration_tables
from opatlas.show.session_report import SessionFacts, cause_table, gap_table
from opatlas.text import printable_lines

from .interrupts import STOPPED, Interrupts, kept_lines
from .ledger import GIVEN_UP, WITHOUT_REPLAY, XFAILED
from .plan import Plan
from .plan_lines import continuation, crowded_folders, next_steps, nothing_to_do, plan_lines
from .pytest_internals import write_parts
from .requested_rows import RequestedRows
from .results import SessionResults
from .rivals import comparison_parts
from .row_note import DURATION_US, STD_US, STORED_US, note_of
from .run_manifest import disturbances, flush_notes
from .selection import meant
from .session_context import SessionContext
from .settings import benchmarks_off

_SHOWN = 5
_MOST_COMPARED = 20


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
        settings, selected = self._context.settings, self._ledger.to_run
        lines = plan_lines(
            plan,
            settings,
            self._collector.known_replays(),
            selected,
            self._requested_rows(),
            self._results.not_replayable(),
        )
        if selected and settings.prof_path is None and not settings.collect_only:
            found = disturbances(settings.devices, *self._context.surroundings.at_start(settings.devices))
            lines += [f"this disturbs durations: {', '.join(found)}"] if found else []
            lines += flush_notes(settings)
        return [f"opatlas: {printable_lines(line)}" for line in lines]

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
                terminal.write_line(printable_lines(f"opatlas: {line}"), red=True)
        if plan is None or not self._context.runs_rows:
            return
        terminal.ensure_newline()
        figures = self._tally.figures
        if figures and not is_quiet:
            terminal.section("durations", sep="=")
            write_parts(terminal, duration_tables(figures.values()))
        if compared := list(comparison_parts(self._context.settings, plan, figures, self._tally.hosts)):
            terminal.section("comparison", sep="=")
            write_parts(terminal, compared)
        terminal.section("OpAtlas", sep="=")
        write_parts(terminal, self._parts(plan, terminal))
        for problem in self._problems(plan):
            terminal.write_line(printable_lines(problem), red=True)
        if status == pytest.ExitCode.OK and terminal.isatty and not is_quiet:
            write_parts(terminal, next_steps(self._context.settings, measured=self._tally.outcomes["passed"]))

    def _requested_rows(self) -> RequestedRows:
        return RequestedRows(self._context.config, self._collector)

    def _parts(self, plan: Plan, terminal: pytest.TerminalReporter) -> Iterator[Part]:
        """Yields the summary, and writes the ledger, which is red if a row failed."""
        counts = self._ledger.counts()
        if counts:
            statuses = [status for status in map(Status.from_cell, counts) if status is not None]
            terminal.write_line(self._ledger.line(), red=any(status.expected_to_fail for status in statuses))
        if self._interrupts.now:
            yield from kept_lines(self._context, "stopped at once")
            return
        merged = self._records.merged
        if not counts.keys() - {WITHOUT_REPLAY}:
            if merged is None or not (merged.added.total() or merged.updated.total()):
                yield from self._nothing_run(plan)
            if not self._results.has_written():
                return
        facts = self._results.facts()
        yield Fields({**self._run_fields(plan, facts), **self._written(plan, facts)})
        if causes := self._tally.causes():
            yield cause_table("not measured", causes, _SHOWN)
        gaps = self._results.gaps
        if gaps and facts.not_comparable:
            yield f"{len(gaps):,} rows with both durations, {facts.not_comparable}"
        elif any(gap.outside for gap in gaps):
            yield gap_table(gaps, _SHOWN)
        yield from self._score()

    def _run_fields(self, plan: Plan, facts: SessionFacts) -> dict[str, object]:
        """Returns how rows ran, and how good their durations are."""
        settings, accounts = self._context.settings, self._ledger.counts()
        unit, rows, seconds = settings.unit, sum(facts.statuses.values()), facts.seconds
        given_up = accounts[GIVEN_UP] + accounts[XFAILED] - self._tally.outcomes["xfailed"]
        unresolved = ", ".join(f"{n} {status}" for status, n in self._ledger.unresolved().most_common())
        not_run = self._ledger.not_run()
        run = "run" if settings.prof_path is None else "looked up"
        return {
            f"{unit}s {run}": (rows, f"in {seconds:.1f} s, {rows / seconds:.3g} {unit}s/s") if rows else None,
            **self._tally.running_time.waited(),
            "judged": self._tally.verdicts() or None,
            **facts.quality,
            "not run": (len(not_run), continuation(plan, settings, not_run, self._context.run_id)) if not_run else None,
            "measured, failed before": self._tally.outcomes["xpassed"] or None,
            "given up": (given_up, "crashed or timed out in earlier sessions: --runxfail runs them")
            if given_up
            else None,
            "left by earlier sessions": unresolved or None,
        }

    def _written(self, plan: Plan, facts: SessionFacts) -> dict[str, object]:
        """Returns what was written, and where."""
        settings, merged = self._context.settings, self._records.merged
        found: dict[str, object] = {}
        if merged is not None and (facts.statuses or self._results.has_written()):
            updated, added, marked = (counts.total() for counts in (merged.updated, merged.added, merged.marked))
            done = "written" if settings.writes else "would be written"
            found[done] = f"{updated} updated, {added} added, {marked} marked, {len(merged.pruned)} pruned"
            for database in self._records.pruned_in:
                restore = f"`opatlas history {database.path} --restore pruned` brings them back"
                found["pruned rows"] = (str(database.pruned_dir), restore)
            if merged.unmatched:
                found["no row"] = settings.workload.unmatched(len(merged.unmatched))
            if merged.of_siblings:
                found["kernels of sibling types without a row"] = (
                    len(merged.of_siblings),
                    "--update-mode=all adds these rows",
                )
            if merged.repeated:
                found["repeated rows"] = (merged.repeated, "got the duration of the earlier row of their signature")
        paths = [settings.targets[number].path for number in plan.named_targets(len(settings.targets))]
        crowded = crowded_folders(paths)
        named = [str(path) for path in paths if path.parent not in crowded]
        found["device"] = facts.device or None
        found["database"] = "\n".join(named) or None
        found["databases"] = "\n".join(f"{count:,} in {folder}" for folder, count in crowded.items()) or None
        found["report"] = "\n".join(self._results.paths) or None
        return found

    def _nothing_run(self, plan: Plan) -> Iterator[Part]:
        settings = self._context.settings
        requested, known = self._requested_rows(), self._collector.known_replays()
        replayable = [table for table in plan.tables.values() if table.kernel_type in known]
        if found := nothing_to_do(requested, plan, settings):
            yield Fields(found)
        elif not (self._ledger.without_replay or benchmarks_off(self._context.config)) and (
            example := next((case for table in replayable for case in table.cases.values()), None)
        ):
            near = meant(self._keyword, [table.kernel_type for table in plan.tables.values()])
            yield (
                f"none of {plan.cases_of(known):,} {settings.unit}s was selected{near}; -k takes parts of names such "
                f"as {example}"
            )

    def _score(self) -> Iterator[Part]:
        """Yields what models, or implementations of a suite, achieved."""
        settings = self._context.settings
        if settings.models is not None:
            # Sessions without models do not import the client of endpoints.
            from .models import score_table

            yield from score_table(settings.models, settings.models_folder)
        yield from settings.workload.scores([(each.implementation, each.path) for each in settings.targets])

    def _problems(self, plan: Plan) -> Iterator[str]:
        if self._interrupts.now:
            return
        if self._context.stop_reason not in ("", STOPPED):
            yield f"stopped: {self._context.stop_reason}"
        merged = self._records.merged
        failed = merged is None or merged.problems
        for problem in self._records.problems:
            yield f"{'NOT WRITTEN BACK' if failed else 'written back, but'}: {problem}"
        for problem in self._ledger.problems:
            yield f"THE ROWS DO NOT ADD UP: {problem}"
        if plan.problems:
            # The reasons are printed before the rows.
            yield "not all files were read, or not all of their lines: see `not read:` before the rows"
        for problem in self._results.problems:
            yield f"not read or written: {problem}"


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
        return "passed", "", f"PASSED {formats.ratio(compared.ratio)} of {formats.duration(compared.stored_us)} stored"

    def print(self, terminal: pytest.TerminalReporter) -> None:
        """Prints the rows whose durations differ most."""
        plan = self._context.plan
        if plan is not None and not plan.error:
            write_parts(terminal, self._parts())

    def _parts(self) -> Iterator[Part]:
        if self._compared:
            furthest = sorted(self._compared.values(), key=lambda each: -abs(math.log(each.ratio)))
            most = None if self._verbosity > 0 else _MOST_COMPARED
            columns = (
                *(Column("new / stored", formats.ratio), Column("new(us)", formats.microseconds)),
                *(Column("noise", formats.percent), Column("stored(us)", formats.microseconds), "row"),
            )
            rows = [(each.ratio, each.new_us, each.noise, each.stored_us, each.case_id) for each in furthest[:most]]
            yield Table(columns, rows, "stored durations, the furthest apart first", left_out=len(furthest) - len(rows))
        unstored = (len(self._without), "measured, without a stored duration") if self._without else None
        yield Fields({"not compared": unstored, "--read-only": "nothing was written into the database"})


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
