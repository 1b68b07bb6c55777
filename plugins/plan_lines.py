"""The lines about a plan: what was done to the database, what will run, and what is left out."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from opatlas import formats
from opatlas.capture.time_shares import without_replay as shares_without_replay
from opatlas.data.database import Database
from opatlas.data.manifest import read_manifests
from opatlas.data.pace import replay_pace
from opatlas.data.update_mode import UpdateMode
from opatlas.row.roofline import row_bytes
from opatlas.row.siblings import suggest_spelling
from opatlas.row.signature import make_case_id
from opatlas.run.devices.device import kind_named
from opatlas.text import pluralize, suggest

from .plan import Plan, PreparedDatabase
from .requested_rows import RequestedRows
from .settings import Settings

#: Databases are named one by one up to this number.
_MANY = 8


def nothing_to_do(requested: RequestedRows, plan: Plan, settings: Settings) -> dict[str, object]:
    """Returns why none of the chosen rows will run; nothing if rows will run."""
    left_out = requested.left_out(plan)
    if left_out and settings.mode is UpdateMode.STALE:
        return {"nothing to do": (left_out, f"{settings.unit}s, none of them stale")}
    if left_out:
        captured = requested.captured_only(plan)
        found: dict[str, object] = {
            "nothing to do": (left_out, f"{settings.unit}s with {_duration(settings)}{_kinds(left_out, captured)}")
        }
        if captured:
            return found | {"--update-mode=unreplayed": f"replays the {captured:,} without a replayed duration"}
        return found | {"--update-mode=all": "measures them again"}
    if elsewhere := requested.in_other_shards(plan):
        return {"nothing to do": (elsewhere, f"{settings.unit}s, all in other shards")}
    if not_selected := requested.not_selected(plan):
        said = "nothing to do" if settings.where is None or settings.where.is_of_status else "no row was selected"
        return {said: (not_selected, f"{settings.unit}s, of none of which {_selection(settings)} is true")}
    return {}


def crowded_folders(paths: Sequence[Path]) -> dict[Path, int]:
    """Returns the folders with too many of these databases to name one by one, and how many each has."""
    counts = Counter(path.parent for path in paths)
    return {folder: count for folder, count in counts.items() if count > _MANY}


def left_out_lines(requested: RequestedRows, plan: Plan, settings: Settings) -> Iterator[str]:
    """Yields how many of the chosen rows are not selected, and how many the update mode leaves out."""
    if not_selected := requested.not_selected(plan):
        yield f"{pluralize(not_selected, settings.unit)} not selected by {_selection(settings)}"
    if settings.mode is UpdateMode.STALE:
        yield from _stale_lines(requested, plan, settings)
    elif left_out := requested.left_out(plan):
        kinds = _kinds(left_out, requested.captured_only(plan))
        rows = pluralize(left_out, settings.unit)
        yield f"{rows} left out, with {_duration(settings)} already{kinds} (--update-mode={settings.mode})"


def continuation(plan: Plan, settings: Settings, not_run: Collection[str], run_id: str) -> str:
    """Returns how to run the rows that a session did not reach; "" for one that writes nothing.

    Args:
        not_run: ids of these rows, at least one.
        run_id: the run of the session.
    """
    if settings.read_only:
        return ""
    if settings.mode is not UpdateMode.ALL:
        return "the same command goes on with them"
    if len(plan.unreplayed().intersection(not_run)) == len(not_run):
        return "the same command with --update-mode=unreplayed goes on with them"
    # Some of the rows have replayed durations of earlier runs.
    where = f'run != "{run_id}"' if settings.where is None else f'({settings.where}) and run != "{run_id}"'
    return f"the same command with --where {shlex.quote(where)} goes on with them"


def next_steps(settings: Settings, *, measured: int) -> Iterator[str]:
    """Yields what a user may do next with a database whose rows were measured."""
    if measured and settings.writes:
        database = shlex.quote(os.path.relpath(settings.database))
        yield f"next: opatlas check {database}; opatlas report {database} --output site"


def _stale_lines(requested: RequestedRows, plan: Plan, settings: Settings) -> Iterator[str]:
    """Yields how many rows are stale, why, and how many are left out."""
    counts = Counter(
        staleness
        for table in plan.tables.values()
        for case_id, staleness in table.staleness.items()
        if requested(table.kernel_type, case_id)
    )
    stale = {reason: count for reason, count in counts.most_common() if reason.is_stale}
    fresh = [f"{count:,} {reason.value}" for reason, count in counts.items() if not reason.is_stale]
    if never := requested.left_out(plan) - sum(counts[reason] for reason in counts if not reason.is_stale):
        fresh.append(f"{never:,} never replayed")
    why = f": {', '.join(f'{count:,} {reason.value}' for reason, count in stale.items())}" if stale else ""
    left_out = f"; left out: {', '.join(fresh)}" if fresh else ""
    yield f"{sum(stale.values()):,} stale{why}{left_out} (--update-mode=stale)"
    kind = kind_named(settings.devices[0].kind)
    if kind.driver_version() == "":
        yield f"the driver is not compared: {kind.tool} does not tell its version"


def _duration(settings: Settings) -> str:
    return "a duration" if settings.mode is UpdateMode.MISSING_ONLY else "a replayed duration"


def _kinds(count: int, captured: int) -> str:
    return f" ({count - captured:,} replayed, {captured:,} captured only)" if captured else ""


def _selection(settings: Settings) -> str:
    """Returns --where as the user gave it."""
    return f"--where {str(settings.where)!r}"


def plan_lines(
    plan: Plan,
    settings: Settings,
    replayable: Collection[str],
    selected: int,
    requested: RequestedRows,
    without_replay: Mapping[str, int],
) -> list[str]:
    """Returns the lines about a plan.

    Args:
        replayable: the kernel types with a replay.
        selected: the number of rows that will run.
        requested: the rows that files and -k select, to count rows that are not cases.
        without_replay: the number of collected rows without a replay, by kernel type.
    """
    # A killed session may have had several of the databases.
    prepared = dict.fromkeys(line for each in plan.prepared for line in _prepared_lines(each))
    lines = (*prepared, *_to_run(plan, settings, replayable, selected, requested, without_replay))
    return list(lines)


def _prepared_lines(prepared: PreparedDatabase) -> Iterator[str]:
    """Yields what was done to a database before its rows were planned."""
    if prepared.taken_over:
        yield f"{prepared.taken_over} was killed; took the database over from it"
    if prepared.starter_rows:
        yield f"there was no database yet; made a starter of {pluralize(prepared.starter_rows, 'theory row')}"
    if prepared.rows_added:
        added, source = pluralize(prepared.rows_added, "row"), prepared.rows_from or "the starter database"
        yield f"{prepared.rows_for}: {added} without durations added from {source}"
    if prepared.mapping is not None:
        yield str(prepared.mapping)
    edited = prepared.edited
    if edited.example is not None:
        rows = pluralize(edited.count, "row was", "rows were")
        example = make_case_id(edited.example.kernel_type, edited.example.signature)
        yield (
            f"{rows} measured with other shapes than the CSV has now ({example}): counted as not measured; the "
            f"durations stay in runs/ (`opatlas history`)"
        )
    for recovered in prepared.recovered:
        if recovered or not recovered.problems:
            yield str(recovered)
        else:
            yield f"could not merge the records that session {recovered.run_id} left behind"
        yield from recovered.problems


def _to_run(
    plan: Plan,
    settings: Settings,
    replayable: Collection[str],
    selected: int,
    requested: RequestedRows,
    without_replay: Mapping[str, int],
) -> Iterator[str]:
    # xdist's controller collects nothing: it knows only the replays of bench/.
    rows = max(plan.cases_of(replayable), selected)
    of_all = "" if selected == rows else f"{selected:,} of "
    what = settings.workload.verb
    unit = settings.unit
    has_named = len(settings.targets) > 1 or not settings.targets[0].implementation.is_default
    yield f"{of_all}{pluralize(rows, unit)} to {what}{'' if has_named else f', database {settings.database}'}"
    if has_named:
        counts = plan.cases_by_target()
        named = plan.named_targets(len(settings.targets))
        crowded = crowded_folders([settings.targets[number].path for number in named])
        for number in named:
            target = settings.targets[number]
            if target.path.parent not in crowded:
                yield f"{target.implementation.label}: {pluralize(counts[number], unit)}, database {target.path}"
        yield from (f"{count:,} implementations with databases in {folder}" for folder, count in crowded.items())
        if others := len(settings.targets) - len(named):
            yield f"{pluralize(others, 'further implementation has', 'further implementations have')} no row to {what}"
    if settings.collect_only and settings.prof_path is None:
        yield from _estimate(plan, settings, replayable, requested)
    yield from settings.notes
    yield from _misspelt(plan, settings, replayable)
    yield from (target.note for target in settings.targets if target.note)
    yield from plan.notes
    yield from settings.workload.notes
    yield from left_out_lines(requested, plan, settings)
    if shares := shares_without_replay(without_replay, plan.captured_time_us()):
        listed = [f"{each}{suggest_spelling(each.kernel_type, replayable)}" for each in shares[:_MANY]]
        listed += [f"{len(shares) - _MANY} more"] if len(shares) > _MANY else []
        count = sum(without_replay.values())
        yield f"{count:,} {unit}s without a replay: {', '.join(listed)} (docs/contributing.md shows how to add one)"
    if settings.shard is not None:
        yield f"{pluralize(plan.other_shards(), unit)} in other shards (--shard={settings.shard})"
    yield from (f"{path} has a header and no rows" for path in plan.without_rows())
    for name, places in plan.invalid_durations().items():
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        yield f"{name}: {places[0]}{more} is no duration (a number above 0): counted as not measured"
    yield from (text for table in plan.tables.values() for text in table.misspelt)
    yield from (f"not read: {problem}" for problem in plan.problems)


def _misspelt(plan: Plan, settings: Settings, replayable: Collection[str]) -> Iterator[str]:
    """Yields which files of implementations are named after no kernel type that the session knows."""
    known = {*replayable, *(table.kernel_type for table in plan.tables.values())}
    for implementation in () if settings.workload.tasks else [each.implementation for each in settings.targets]:
        for name in sorted(set(implementation.sources).difference(known)):
            yield f"{implementation.name}: no kernel type is called {name}{suggest(name, known)}"


def _estimate(plan: Plan, settings: Settings, replayable: Collection[str], requested: RequestedRows) -> Iterator[str]:
    """Yields how long the rows will take, and how large the tensors of the largest row are."""
    rows = 0
    largest: tuple[int, str] = (0, "")
    for table in plan.tables.values():
        if table.kernel_type not in replayable:
            continue
        # What is read of the rows is not kept.
        for case_id, row, known_failure in replace(table, table=table.table.without_derived()).rows():
            if (known_failure is None or known_failure.run) and requested(table.kernel_type, case_id):
                rows += 1
                largest = max(largest, (row_bytes(table.kernel_type, row.cells) or 0, table.kernel_type))
    if not rows:
        return
    pace = replay_pace(read_manifests(Database(settings.database), []).values(), settings.devices[0].kind)
    size, kernel_type = largest
    memory = f"; the largest, of {kernel_type}, has tensors of {formats.size(size)}" if size else ""
    yield f"{pluralize(rows, settings.unit)} would take about {pace.time_of(rows)}{memory}"
