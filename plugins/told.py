"""What a session tells: the lines about its plan, and its report files."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from opatlas import formats
from opatlas.capture.launches import time_shares
from opatlas.data.csv_files import write_text
from opatlas.data.database import Database
from opatlas.data.manifest import read_manifests, replay_pace
from opatlas.data.origin import Provenance
from opatlas.errors import OpAtlasError
from opatlas.row.location import default_database_of
from opatlas.row.roofline import row_bytes
from opatlas.row.status import Status, UpdateMode
from opatlas.run.devices.device import kind_named
from opatlas.show.row_summary import quality_fields
from opatlas.show.session_report import Cause, SessionFacts, find_gaps, replay_report, write_gap_csv
from opatlas.text import pluralize, printable_lines, shortened, suggest

from .cases import NOT_RUN, CaseResult, Fate, SessionCase, figures_of, ledger_line, of_fate, results_of, unresolved
from .reports import FOR_OTHERS
from .target import captured_mismatch

if TYPE_CHECKING:
    from .session import Session


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
        listed = [f"{each}{suggest(each.kernel_type, replayable, least=0.85)}" for each in shares[:_MANY]]
        listed += [f"{len(shares) - _MANY} more"] if len(shares) > _MANY else []
        count = without_replay.total()
        yield f"{count:,} {unit}s without a replay: {', '.join(listed)} (docs/contributing.md shows how to add one)"
    if settings.shard is not None:
        others = len(of_fate(session.cases, Fate.OTHER_SHARD))
        yield f"{pluralize(others, unit)} in other shards (--shard={settings.shard})"
    for table in plan.tables.values():
        if not len(table.table):
            yield f"{table.table.path} has no rows"
        yield from table.notes
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
    """Yields how long the rows will take, and how large the tensors of the largest row are."""
    settings = session.context.settings
    rows = [case for case in to_run if case.will_run and session.is_requested(case.kernel_type, case.id)]
    if not rows:
        return
    size, kernel_type = max((row_bytes(case.kernel_type, case.cells) or 0, case.kernel_type) for case in rows)
    pace = replay_pace(read_manifests(Database(settings.database), []).values(), settings.devices[0].kind)
    memory = f"; the largest, of {kernel_type}, has tensors of {formats.size(size)}" if size else ""
    yield f"{pluralize(len(rows), settings.unit)} would take about {pace.time_of(len(rows))}{memory}"


def continuation(session: Session) -> str:
    """Returns how to run the rows that a session did not reach; "" for one that writes nothing."""
    settings = session.context.settings
    if settings.read_only:
        return ""
    # Some of the rows may have replayed durations of earlier runs.
    new = f'run != "{session.context.run_id}"'
    where = new if settings.where is None else f"({settings.where}) and {new}"
    return f"the same command with --where {shlex.quote(where)} goes on with them"


_REPORT = "replay_report"
_REASON_SHOWN = 160
#: The parts of a reason that differ between rows with the same cause: addresses, sizes, words with digits.
_PARTICULAR = re.compile(r"0x[0-9a-f]+|\b[\d,;.x]*\d[\d,;.x]*\b")


def facts_of(session: Session) -> SessionFacts:
    """Returns what the report and the summary are made of."""
    plan, cases, context = session.plan(), session.cases, session.context
    results = dict(results_of(cases))
    tables = plan.tables.items()
    return SessionFacts(
        run_id=context.run_id,
        database=context.settings.database,
        device=session.records.device_name,
        mode=context.settings.mode.value,
        outcomes=Counter(found.word for found in results.values()),
        ledger=ledger_line(cases, context.settings.unit),
        not_run=sorted(case.id for case in cases if case.account == NOT_RUN),
        unresolved=unresolved(cases),
        statuses=Counter(found.status.value for found in results.values()),
        errors=causes(cases),
        assumptions=assumptions(cases),
        left_out=Counter(case.rows.key for case in of_fate(cases, Fate.LEFT_OUT)),
        duplicates={key: count for key, table in tables if (count := len(of_fate(table.cases, Fate.REPEATED)))},
        not_replayable=session.not_replayable(),
        merged=session.records.merged,
        seconds=_seconds(results),
        figures=figures_of(cases).values(),
        quality=_quality(session),
        manifest=session.records.manifest,
        not_comparable=_not_comparable(session),
    )


def _quality(session: Session) -> dict[str, tuple[int, str]]:
    """Returns how many measured rows are not quiet, by quality, and why."""
    figures, settings = figures_of(session.cases).values(), session.context.settings
    is_here = settings.prof_path is None and bool(figures)
    return quality_fields(figures, session.context.higher_load if is_here else "")


def _not_comparable(session: Session) -> str:
    """Returns why captured durations do not compare with those of the session; "" where they do."""
    own = session.context.databases[0]
    captures = own.provenance if own.target.captures is None else Provenance(Database(own.target.captures))
    return "" if captures is None else captured_mismatch(captures, session.context.settings)


def write_reports(session: Session) -> None:
    """Writes replay_report_*.md and duration_gap_*.csv, after the records are merged and the rows accounted for."""
    merged, settings, database = session.records.merged, session.context.settings, session.context.database
    if merged is None or not settings.writes or not (any(results_of(session.cases)) or session.has_written):
        return
    # A kernel type without a measured row in this database may have no file in it.
    measured = sorted(merged.updated + merged.added)
    captures = settings.targets[0].captures
    session.gaps, session.unreported = find_gaps(
        database,
        [name for name in measured if database.csv_path(name).exists()],
        Database(captures) if captures is not None else None,
    )
    # Beside the rows that all implementations of the session have in common.
    home = default_database_of(database.path)
    report = (database if home is None else Database(home)).new_report_path(
        _REPORT, session.context.started_at, suffix=".md"
    )
    # Both files of a session have the same time and number in their names.
    gaps = report.with_name(f"duration_gap{report.stem.removeprefix(_REPORT)}.csv")
    try:
        write_text(report, replay_report(facts_of(session), session.gaps))
        session.paths = [os.path.abspath(report)]
        if session.gaps:
            write_gap_csv(gaps, session.gaps)
            session.paths.append(os.path.abspath(gaps))
    except OpAtlasError as error:
        session.unreported.append(str(error))


def _seconds(results: dict[SessionCase, CaseResult]) -> float:
    """Returns the seconds from the first row to the last, without the average wait for other sessions."""
    if not results:
        return 1e-3
    took = max(found.ended for found in results.values()) - min(found.began for found in results.values())
    waited = sum(found.waited.get(FOR_OTHERS, 0.0) for found in results.values())
    return max(took - waited / len({id(case.worker) for case in results}), 1e-3)


def causes(cases: Iterable[SessionCase]) -> list[Cause]:
    """Returns the causes of rows that were not measured, the most frequent first."""
    failed = [
        (case, f"{found.status}: {shortened(found.reason, _REASON_SHOWN)}", found.status)
        for case, found in results_of(cases)
        if found.status is not Status.MEASURED
    ]
    # If a process or the device failed, the number is the cause: a signal, a deadline, a code.
    ended = (Status.CRASHED, Status.TIMEOUT, Status.DEVICE_ERROR)
    return _counted(
        ((case, text, text if status in ended else _PARTICULAR.sub("N", text)) for case, text, status in failed)
    )


def assumptions(cases: Iterable[SessionCase]) -> list[Cause]:
    """Returns the assumptions about measured rows, the most frequent first."""
    assumed = ((case, text) for case, found in results_of(cases) for text in found.assumptions)
    return _counted((case, text, _PARTICULAR.sub("N", text)) for case, text in assumed)


def _counted(texts: Iterable[tuple[SessionCase, str, str]]) -> list[Cause]:
    """Counts texts of cases, given with what such texts have in common."""
    found: dict[tuple[str, str], list[tuple[SessionCase, str]]] = {}
    for case, text, common in texts:
        found.setdefault((case.rows.label, common), []).append((case, text))
    causes = []
    for (label, common), like in sorted(found.items(), key=lambda entry: -len(entry[1])):
        case, text = like[0]
        if len(like) > 1 and text != common:
            text = f"{text} (and {len(like) - 1:,} like it)"
        causes.append(Cause(label, text, len(like), case.id))
    return causes
