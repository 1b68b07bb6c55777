"""What a user should know before rows run."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from database.captured_time import without_replay_lines
from database.case_id import case_id_of
from database.terminal import counted
from plugins.asked_for import AskedFor
from plugins.next_steps import left_out_lines
from plugins.plan import Plan
from plugins.settings import Settings


def plan_lines(
    plan: Plan, settings: Settings, replayable: Collection[str], selected: int, asked_for: AskedFor
) -> list[str]:
    """What was done to the database, what is to run, and what is left out of that.

    Args:
        replayable: the kernel types that have a replay.
        selected: how many rows were selected.
        asked_for: the rows that the files named and -k select, for the counts of rows that are no cases.
    """
    lines = (*_prepared(plan), *_to_run(plan, settings, replayable, selected, asked_for))
    return [f"opatlas: {line}" for line in lines]


def _prepared(plan: Plan) -> Iterator[str]:
    if plan.taken_over:
        yield f"{plan.taken_over} was killed; took the database over from it"
    if plan.prepared.starter_rows:
        yield f"there was no database yet; made a starter of {counted(plan.prepared.starter_rows, 'theory row')}"
    if plan.prepared.mapping is not None:
        yield str(plan.prepared.mapping)
    edited = plan.prepared.edited
    if edited.example is not None:
        rows = counted(edited.count, "row was", "rows were")
        example = case_id_of(edited.example.kernel_type, edited.example.signature)
        yield (
            f"{rows} measured with other shapes than the CSV has now ({example}): counted as not measured; the "
            f"durations stay in runs/ (`opatlas history`)"
        )
    for recovered in plan.prepared.recovered:
        if recovered or not recovered.problems:
            yield str(recovered)
        else:
            yield f"could not merge the records that session {recovered.run_id} left behind"
        yield from recovered.problems


def _to_run(
    plan: Plan, settings: Settings, replayable: Collection[str], selected: int, asked_for: AskedFor
) -> Iterator[str]:
    # xdist's controller, which collects nothing, knows the replays of bench/ only.
    rows = max(plan.cases_of(replayable), selected)
    of_all = "" if selected == rows else f"{selected:,} of "
    what = "measure" if settings.messages is not None else "replay" if settings.prof_path is None else "look up"
    unit = settings.unit
    yield f"{of_all}{counted(rows, unit)} to {what}, database {settings.database}"
    if settings.collect_only and settings.prof_path is None and settings.messages is None and plan.is_empty:
        yield "there is no database yet: without --co the session makes a starter of theory rows first"
    if settings.note:
        yield settings.note
    yield from plan.notes
    if settings.messages is not None:
        yield from settings.messages.about
    yield from left_out_lines(asked_for, plan, settings)
    if settings.collect_only and settings.prof_path is None:
        # A session that runs rows tells of them at its end.
        missing = without_replay_lines(asked_for.without_replay(plan), plan.captured_time_us(), replayable)
        yield from (" ".join(line.split()) for line in missing)
    if settings.shard is not None:
        yield f"{counted(plan.other_shards(), unit)} in other shards (--shard={settings.shard})"
    yield from (f"{path} has a header and no rows" for path in plan.without_rows())
    for name, places in plan.no_durations().items():
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        yield f"{name}: {places[0]}{more} is no duration (a number above 0): counted as not measured"
    yield from (text for table in plan.tables.values() for text in table.misspelt)
    yield from (f"not read: {problem}" for problem in plan.problems)
