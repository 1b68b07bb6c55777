"""What a session prints: a row's numbers beside its word (-v), and what became of the rows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from opatlas import formats
from opatlas.ask.compare.comparison import compare_databases
from opatlas.ask.compare.databases import ComparedDatabase
from opatlas.errors import OpAtlasError
from opatlas.row.status import Status
from opatlas.show.compared import evidence, figures_table, rows_table
from opatlas.show.result import Column, Fields, Part, Table
from opatlas.show.row_summary import duration_tables
from opatlas.show.session_report import SessionFacts, cause_table, gap_table
from opatlas.text import printable_lines, shortened

from .cases import GIVEN_UP, WITHOUT_REPLAY, XFAILED, Fate, figures_of, ledger, results_of
from .reports import record_of, write_parts
from .told import continuation, facts_of

if TYPE_CHECKING:
    from .session import Session

_REASON_SHOWN = 100
_SHOWN = 5
_MOST_COMPARED = 20
#: More implementations are left to `opatlas compare`.
_MOST_RIVALS = 3


class RowWords:
    """Adds to pytest's word for a row what is known of the row. Other tests keep pytest's word."""

    def __init__(self, session: Session) -> None:
        self._session = session

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> Generator[None, tuple[str, str, Any], tuple[str, str, Any]]:
        """Adds duration, noise and rate of a measured row, or the reason of a failure, to the word that -v shows."""
        category, letter, word = yield
        # `Session.keep` takes the record out of the note, before the short summary asks again.
        is_row = isinstance(report, pytest.TestReport) and record_of(report) is not None
        case = self._session.case_of(report.nodeid) if is_row and isinstance(word, str) and word else None
        if case is not None and case.result is not None:
            found = case.result
            if found.stored_us and found.duration_us:
                ratio = formats.ratio(found.duration_us / found.stored_us)
                word = f"{word} {ratio} of {formats.duration(found.stored_us)} stored"
            if found.figures is not None:
                word = f"{word} {found.figures.text()}"
            elif report.failed:
                word = f"{word} {shortened(f'{found.status}: {found.reason}', _REASON_SHOWN)}"
        return category, letter, word


def print_summary(session: Session, terminal: pytest.TerminalReporter) -> None:
    """Prints what became of the rows."""
    context, is_quiet = session.context, terminal.config.option.verbose < 0
    plan = context.plan
    if plan is not None and plan.error_status == pytest.ExitCode.TESTS_FAILED:
        for line in plan.error.splitlines():
            terminal.write_line(printable_lines(f"opatlas: {line}"), red=True)
    if plan is None or not context.runs_rows:
        return
    terminal.ensure_newline()
    figures = figures_of(session.cases)
    if figures and not is_quiet:
        terminal.section("durations", sep="=")
        write_parts(terminal, duration_tables(figures.values()))
    if compared := list(_comparison(session)):
        terminal.section("comparison", sep="=")
        write_parts(terminal, compared)
    terminal.section("OpAtlas", sep="=")
    write_parts(terminal, _parts(session, terminal))
    for problem in _problems(session):
        terminal.write_line(printable_lines(problem), red=True)
    settings = context.settings
    if context.profile is not None:
        write_parts(terminal, [Fields(_samples(session), "samples")])
    if settings.read_only:
        write_parts(terminal, _stored(session, terminal.verbosity))


def _parts(session: Session, terminal: pytest.TerminalReporter) -> Iterator[Part]:
    """Yields the summary, and writes the ledger, which is red if a row failed."""
    counts, facts = ledger(session.cases), facts_of(session)
    if counts:
        statuses = [status for status in map(Status.from_cell, counts) if status is not None]
        terminal.write_line(facts.ledger, red=any(status.expected_to_fail for status in statuses))
    if session.context.stopped_now:
        yield from session.context.kept_lines("stopped at once")
        return
    if not counts.keys() - {WITHOUT_REPLAY}:
        merged = session.records.merged
        if merged is None or not (merged.added.total() or merged.updated.total()):
            idle = ((fate, session.requested(fate)) for fate in (Fate.LEFT_OUT, Fate.OTHER_SHARD, Fate.NOT_SELECTED))
            yield Fields({"nothing to do": next(((len(rows), fate.value) for fate, rows in idle if rows), None)})
        if not session.has_written:
            return
    yield Fields({**_run_fields(session, facts), **_written(session, facts)})
    if facts.errors:
        yield cause_table("not measured", facts.errors, _SHOWN)
    gaps = session.gaps
    if gaps and facts.not_comparable:
        yield f"{len(gaps):,} rows with both durations, {facts.not_comparable}"
    elif any(gap.outside for gap in gaps):
        yield gap_table(gaps, _SHOWN)
    yield from _score(session)


def _run_fields(session: Session, facts: SessionFacts) -> dict[str, object]:
    """Returns how rows ran, and how good their durations are."""
    settings, accounts = session.context.settings, ledger(session.cases)
    unit, rows, seconds = settings.unit, sum(facts.statuses.values()), facts.seconds
    given_up = accounts[GIVEN_UP] + accounts[XFAILED] - facts.outcomes["xfailed"]
    verdicts = Counter(found.verdict for _, found in results_of(session.cases) if found.verdict)
    run = "run" if settings.prof_path is None else "looked up"
    return {
        f"{unit}s {run}": (rows, f"in {seconds:.1f} s, {rows / seconds:.3g} {unit}s/s") if rows else None,
        "judged": ", ".join(f"{count} {verdict}" for verdict, count in verdicts.most_common()) or None,
        **facts.quality,
        "not run": (len(facts.not_run), continuation(session)) if facts.not_run else None,
        "measured, failed before": facts.outcomes["xpassed"] or None,
        "given up": (given_up, "crashed or timed out in earlier sessions: --runxfail runs them") if given_up else None,
        "left by earlier sessions": ", ".join(f"{n} {status}" for status, n in facts.unresolved.items()) or None,
    }


def _written(session: Session, facts: SessionFacts) -> dict[str, object]:
    """Returns what was written, and where."""
    settings, merged = session.context.settings, session.records.merged
    found: dict[str, object] = {}
    if merged is not None and (facts.statuses or session.has_written):
        updated, added, marked = (counts.total() for counts in (merged.updated, merged.added, merged.marked))
        done = "written" if settings.writes else "would be written"
        found[done] = f"{updated} updated, {added} added, {marked} marked, {len(merged.pruned)} pruned"
        for database in session.records.pruned_in:
            restore = f"`opatlas history {database.path} --restore pruned` brings them back"
            found["pruned rows"] = (str(database.pruned_dir), restore)
        if merged.unmatched:
            found["no row"] = (len(merged.unmatched), f"{settings.unit}s: not added")
        if merged.of_siblings:
            of_siblings = (len(merged.of_siblings), "--update-mode=all adds these rows")
            found["kernels of sibling types without a row"] = of_siblings
        if merged.repeated:
            found["repeated rows"] = (merged.repeated, "got the duration of the earlier row of their signature")
    paths = [each.path for each in settings.targets]
    more = [f"and {len(paths) - _SHOWN} more"] if len(paths) > _SHOWN else []
    found["device"] = facts.device or None
    found["database"] = "\n".join([*map(str, paths[:_SHOWN]), *more]) or None
    found["report"] = "\n".join(session.paths) or None
    return found


def _score(session: Session) -> Iterator[Part]:
    """Yields what models, or implementations of a suite, achieved."""
    settings = session.context.settings
    if settings.models is not None:
        yield from settings.models.scores(settings.models_folder)
    yield from settings.source.scores([(each.implementation, each.path) for each in settings.targets])


def _problems(session: Session) -> Iterator[str]:
    context, merged = session.context, session.records.merged
    if context.stopped_now:
        yield from session.records.problems
        return
    if context.failed_early:
        yield f"stopped: {context.failed_early}"
    failed = merged is None or merged.problems
    for problem in session.records.problems:
        yield f"{'NOT WRITTEN BACK' if failed else 'written back, but'}: {problem}"
    for problem in session.unaccounted:
        yield f"THE ROWS DO NOT ADD UP: {problem}"
    if context.plan is not None and context.plan.problems:
        # The reasons are printed before the rows.
        yield "not all files were read, or not all of their lines: see `not read:` before the rows"
    for problem in session.unreported:
        yield f"not read or written: {problem}"


def _samples(session: Session) -> dict[str, object]:
    """Returns how many samples of --prof-path were used, left out and added."""
    profile, settings, unmatched = session.runner.samples().profile, session.context.settings, session.unmatched
    account = profile.account
    found: dict[str, object] = {
        "summaries": len(profile.files),
        "launches": (account.ingested, f"of {sum(map(len, profile.cases.values())):,} signatures"),
        **{f"left out: {reason.value}": count for reason, count in account.left_out.most_common() if count},
        "first invalid duration": ", ".join(place for _, place in account.without_duration[:1]) or None,
        "without shapes": _first(list(map(str, account.without_shapes))) or None,
        "copies of a summary": _first(list(map(str, profile.same_bytes))) or None,
        "warm-up and set-up launches": "count as samples, since they look like others",
    }
    if unmatched:
        by_cells = settings.where is not None
        adds = "without --where they may be" if by_cells else "--update-mode=all adds them"
        is_added = settings.mode.adds_rows and not by_cells
        fate = ("would be added" if settings.rehearses else "added") if is_added else f"not added: {adds}"
        named = _first([f"{name} {count:,}" for name, count in unmatched.most_common()])
        found["signatures without a row"] = (unmatched.total(), f"{named}; {fate}")
    return found


def _first(texts: Sequence[str]) -> str:
    more = len(texts) - _SHOWN
    return ", ".join([*texts[:_SHOWN], *([f"{more:,} more"] if more > 0 else [])])


def _stored(session: Session, verbosity: int) -> Iterator[Part]:
    """Yields the rows of a session with --read-only whose stored and new durations differ most."""
    both: list[tuple[float, float, float | None, float, str]] = []
    without = 0
    for case, found in results_of(session.cases):
        if found.duration_us and found.stored_us and found.figures is not None:
            ratio = found.duration_us / found.stored_us
            both.append((ratio, found.duration_us, found.figures.noise, found.stored_us, case.id))
        else:
            without += found.duration_us is not None
    if both:
        both.sort(key=lambda row: -abs(math.log(row[0])))
        rows = both[: None if verbosity > 0 else _MOST_COMPARED]
        columns = (
            *(Column("new / stored", formats.ratio), Column("new(us)", formats.microseconds)),
            *(Column("noise", formats.percent), Column("stored(us)", formats.microseconds), "row"),
        )
        yield Table(columns, rows, "stored durations, the furthest apart first", left_out=len(both) - len(rows))
    unstored = (without, "measured, without a stored duration") if without else None
    yield Fields({"not compared": unstored, "--read-only": "nothing was written into the database"})


def _comparison(session: Session) -> Iterator[Part]:
    """Yields the speed-up of a few implementations over the default; nothing unless both have durations."""
    settings = session.context.settings
    measured: dict[int, set[str]] = {}
    for case, found in results_of(session.cases):
        if found.figures is not None:
            measured.setdefault(case.target, set()).add(case.row_id)
    targets = dict(enumerate(settings.targets))
    default = settings.baseline
    rivals = [number for number in sorted(measured) if number != default]
    if default is None or not settings.writes or not 0 < len(rivals) <= _MOST_RIVALS:
        return
    databases = {
        number: ComparedDatabase(each.implementation.name, each.path, each.implementation.version, number == default)
        for number, each in targets.items()
        if number in (default, *rivals)
    }
    # The default is the first.
    ordered = [databases[number] for number in (default, *rivals)]
    try:
        compared = compare_databases(ordered, kernel_types=sorted({case.kernel_type for case in session.cases}))
    except OpAtlasError as error:
        yield str(error)
        return
    for number in rivals:
        rows = replace(compared, rows=[row for row in compared.rows if row.case_id in measured[number]])
        if any(databases[number].name in row.pairs for row in rows.rows):
            yield figures_table(rows, [databases[number]])
            if (basis := evidence(rows, databases[number])) is not None:
                yield basis
            if (table := rows_table(rows, databases[number])).rows:
                yield table
