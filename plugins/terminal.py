"""What a session prints: the lines about its plan, the numbers of a row beside its word (-v), and the summary."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from opatlas import formats
from opatlas.ask.compare.comparison import compare_databases
from opatlas.ask.compare.databases import ComparedDatabase
from opatlas.capture.launches import time_shares
from opatlas.data.database import Database
from opatlas.data.manifest import read_manifests, replay_pace
from opatlas.errors import OpAtlasError
from opatlas.row.status import Status, UpdateMode
from opatlas.run.devices.device import kind_named
from opatlas.run.registry import similar_replays
from opatlas.show.compared import evidence, figures_table, rows_table
from opatlas.show.result import Column, Fields, Part, Table
from opatlas.show.row_summary import duration_tables
from opatlas.text import pluralize, printable_lines, shortened, suggest

from .cases import NOT_RUN, WITHOUT_REPLAY, Fate, SessionCase, figures_of, ledger, ledger_line, of_fate, results_of
from .reports import record_of, write_parts
from .summary import outcome_parts

if TYPE_CHECKING:
    from .session import Session

_REASON_SHOWN = 100
_SHOWN = 5
_MOST_COMPARED = 20
#: More implementations are left to `opatlas compare`.
_MOST_RIVALS = 3

#: Kernel types without a replay, and implementations, are named one by one up to this number.
_MANY = 8


def plan_lines(session: Session) -> list[str]:
    """Returns the lines about the plan of a session whose rows are selected; none without a plan."""
    plan, context = session.context.plan, session.context
    if plan is None or plan.error:
        return []
    selected = sum(case.account == NOT_RUN for case in session.cases)
    lines = [*plan.prepared, *_to_run(session, selected)]
    settings = context.settings
    if selected and settings.prof_path is None and not settings.collect_only:
        found = context.load_facts()["disturbances"]
        lines += [f"this disturbs durations: {', '.join(found)}"] if found else []
    return [f"opatlas: {printable_lines(line)}" for line in lines]


def _to_run(session: Session, selected: int) -> Iterator[str]:
    settings, plan, replayable = session.context.settings, session.plan(), session.collector.known_replays()
    # xdist's controller collects nothing: it knows only the replays of bench/.
    to_run = [case for case in of_fate(session.cases, Fate.TO_RUN) if case.kernel_type in replayable]
    rows, unit = max(len(to_run), selected), settings.unit
    has_named = len(settings.targets) > 1 or not settings.targets[0].implementation.is_default
    of_all = "" if selected == rows else f"{selected:,} of "
    place = "" if has_named else f", database {settings.database}"
    yield f"{of_all}{pluralize(rows, unit)} to {settings.source.verb}{place}"
    if has_named:
        counts = Counter(case.target for case in of_fate(session.cases, Fate.TO_RUN))
        for number in list(counts)[:_MANY]:
            target = settings.targets[number]
            yield f"{target.implementation.label}: {pluralize(counts[number], unit)}, database {target.path}"
        if others := len(settings.targets) - len(list(counts)[:_MANY]):
            yield pluralize(others, "further implementation")
    if settings.collect_only and settings.prof_path is None:
        yield from _estimate(session, to_run)
    yield from settings.notes
    yield from _misspelt(session, replayable)
    yield from (target.note for target in settings.targets if target.note)
    yield from plan.notes
    yield from settings.source.notes
    if not_selected := session.requested(Fate.NOT_SELECTED):
        yield f"{pluralize(len(not_selected), unit)} not selected by --where {str(settings.where)!r}"
    yield from _left_out(session)
    without_replay = session.not_replayable()
    if shares := time_shares(without_replay, plan.captured_time_us()):
        listed = [f"{each}{similar_replays(each.kernel_type, replayable)}" for each in shares[:_MANY]]
        listed += [f"{len(shares) - _MANY} more"] if len(shares) > _MANY else []
        count = without_replay.total()
        yield f"{count:,} {unit}s without a replay: {', '.join(listed)} (docs/contributing.md shows how to add one)"
    if settings.shard is not None:
        others = len(of_fate(session.cases, Fate.OTHER_SHARD))
        yield f"{pluralize(others, unit)} in other shards (--shard={settings.shard})"
    for table in plan.tables.values():
        if not len(table.table):
            yield f"{table.table.path} has no rows"
    yield from (f"not read: {problem}" for problem in plan.problems)


def _misspelt(session: Session, replayable: Collection[str]) -> Iterator[str]:
    """Yields which files of implementations are named after no kernel type that the session knows."""
    settings = session.context.settings
    known = {*replayable, *(table.kernel_type for table in session.plan().tables.values())}
    for implementation in () if settings.source.subjects else [each.implementation for each in settings.targets]:
        for name in sorted(set(implementation.sources).difference(known)):
            yield f"{implementation.name}: no kernel type is called {name}{suggest(name, known)}"


def _left_out(session: Session) -> Iterator[str]:
    """Yields how many requested rows the update mode leaves out, and of stale ones, why."""
    settings, left_out = session.context.settings, session.requested(Fate.LEFT_OUT)
    if settings.mode is not UpdateMode.STALE:
        if left_out:
            rows, captured = pluralize(len(left_out), settings.unit), sum(case.is_captured_only for case in left_out)
            kinds = f" ({len(left_out) - captured:,} replayed, {captured:,} captured only)" if captured else ""
            duration = "a duration" if settings.mode is UpdateMode.MISSING_ONLY else "a replayed duration"
            yield f"{rows} left out, with {duration} already{kinds} (--update-mode={settings.mode})"
        return
    counts = Counter(case.staleness for case in left_out + session.requested(Fate.TO_RUN))
    never = counts.pop(None, 0)
    stale = {reason: count for reason, count in counts.most_common() if reason is not None and reason.is_stale}
    fresh = [f"{count:,} {reason.value}" for reason, count in counts.items() if reason and not reason.is_stale]
    if never:
        fresh.append(f"{never:,} never replayed")
    why = f": {', '.join(f'{count:,} {reason.value}' for reason, count in stale.items())}" if stale else ""
    left = f"; left out: {', '.join(fresh)}" if fresh else ""
    yield f"{sum(stale.values()):,} stale{why}{left} (--update-mode=stale)"
    kind = settings.devices[0].kind
    if kind_named(kind).driver_version() == "":
        yield f"the driver is not compared: {kind_named(kind).tool} does not tell its version"


def _estimate(session: Session, to_run: Sequence[SessionCase]) -> Iterator[str]:
    """Yields how long the rows will take."""
    settings = session.context.settings
    rows = [case for case in to_run if case.will_run and session.is_requested(case.kernel_type, case.id)]
    if not rows:
        return
    pace = replay_pace(read_manifests(Database(settings.database), []).values(), settings.devices[0].kind)
    yield f"{pluralize(len(rows), settings.unit)} would take about {pace.time_of(len(rows))}"


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
                word = f"{word} {found.figures.line()}"
            elif report.failed:
                word = f"{word} {shortened(f'{found.status}: {found.reason}', _REASON_SHOWN)}"
        return category, letter, word


def print_summary(session: Session, terminal: pytest.TerminalReporter) -> None:
    """Prints what became of the rows."""
    context, plan = session.context, session.context.plan
    if plan is None or not context.runs_rows:
        return
    terminal.ensure_newline()
    figures, settings = figures_of(session.cases), context.settings
    if figures and terminal.config.option.verbose >= 0:
        terminal.section("durations", sep="=")
        write_parts(terminal, duration_tables(figures.values()))
    if compared := list(_comparison(session)):
        terminal.section("comparison", sep="=")
        write_parts(terminal, compared)
    terminal.section("OpAtlas", sep="=")
    if counts := ledger(session.cases):
        statuses = [status for status in map(Status.from_cell, counts) if status is not None]
        is_red = any(status.expected_to_fail for status in statuses)
        terminal.write_line(ledger_line(session.cases, settings.unit), red=is_red)
    write_parts(terminal, _parts(session))
    for problem in _problems(session):
        terminal.write_line(printable_lines(problem), red=True)
    if context.profile is not None:
        write_parts(terminal, [Fields(_samples(session), "samples")])
    if settings.read_only:
        write_parts(terminal, _stored(session, terminal.verbosity))


def _parts(session: Session) -> Iterator[Part]:
    if session.context.stopped_now:
        yield from session.context.kept_lines()
        return
    if not ledger(session.cases).keys() - {WITHOUT_REPLAY} and not session.has_written:
        idle = ((fate, session.requested(fate)) for fate in (Fate.LEFT_OUT, Fate.OTHER_SHARD, Fate.NOT_SELECTED))
        yield Fields({"nothing to do": next(((len(rows), fate.value) for fate, rows in idle if rows), None)})
        return
    yield from outcome_parts(session, _SHOWN)
    yield from _score(session)


def _score(session: Session) -> Iterator[Part]:
    """Yields what implementations of a suite achieved, and the command that tells it of models."""
    settings = session.context.settings
    if settings.models is not None:
        yield f"next: opatlas score {settings.models_folder}"
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
        **{
            f"left out: {reason.value}": (
                count,
                _first([str(each) for of, each in account.time_left_out if of is reason and each.kernel_type]),
            )
            for reason, count in account.left_out.most_common()
        },
        "first invalid duration": ", ".join(place for _, place in account.without_duration[:1]) or None,
        "copies of a summary": _first(list(map(str, profile.same_bytes))) or None,
        "warm-up and set-up launches": "count as samples, since they look like others",
    }
    if unmatched:
        by_cells = settings.where is not None
        adds = "without --where they may be" if by_cells else "--update-mode=all adds them"
        adds = f"{settings.read_only} writes nothing" if settings.read_only else adds
        is_added = settings.mode.adds_rows and not by_cells and not settings.read_only
        fate = "added" if is_added else f"not added: {adds}"
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
    both.sort(key=lambda row: -abs(math.log(row[0])))
    columns = (Column("new / stored", formats.ratio), "new(us)", Column("noise", formats.percent), "stored(us)", "row")
    table = Table(columns, both, "stored durations, the furthest apart first")
    yield table.most_important(None if verbosity > 0 else _MOST_COMPARED)
    unstored = (without or None, "measured, without a stored duration")
    yield Fields(
        {"not compared": unstored, session.context.settings.read_only: "nothing was written into the database"}
    )


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
            yield evidence(rows, [databases[number]])
            yield rows_table(rows, [databases[number]]).most_important(_MOST_COMPARED)
