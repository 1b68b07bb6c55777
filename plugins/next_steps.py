"""Why a session ran no row, or not all of its rows, and which command goes on or comes next."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Collection, Iterator

from bench.devices.driver import driver_version
from database.merge import UpdateMode
from database.terminal import counted
from plugins.asked_for import AskedFor
from plugins.plan import Plan
from plugins.settings import Settings


def nothing_to_do(asked_for: AskedFor, plan: Plan, settings: Settings) -> Iterator[str]:
    """Why none of the rows that were asked for is to be run; nothing where rows are to be run."""
    unit = settings.unit
    left_out = asked_for.left_out(plan)
    if left_out and settings.mode is UpdateMode.STALE:
        yield f"nothing to do: none of {counted(left_out, unit)} is stale"
    elif left_out:
        captured = asked_for.captured_only(plan)
        have = counted(left_out, f"{unit} has", f"{unit}s have")
        yield f"nothing to do: {have} {_duration(settings)} already{_kinds(left_out, captured)}"
        if captured:
            yield (
                f"--update-mode={settings.mode} runs {unit}s without any duration, replayed or captured; "
                f"--update-mode=unreplayed replays the {captured:,}"
            )
        else:
            yield "--update-mode=all measures them again"
    elif elsewhere := asked_for.elsewhere(plan):
        yield f"nothing to do: {counted(elsewhere, unit)} in other shards, and none in this one"
    elif not_selected := asked_for.not_selected(plan):
        said = "no row was selected" if settings.where is not None else "nothing to do"
        yield f"{said}: {_selection(settings)} is true of none of {counted(not_selected, unit)}"


def left_out_lines(asked_for: AskedFor, plan: Plan, settings: Settings) -> Iterator[str]:
    """How many of the rows that were asked for are not selected, and how many the update mode leaves out."""
    if not_selected := asked_for.not_selected(plan):
        yield f"{counted(not_selected, settings.unit)} not selected by {_selection(settings)}"
    if settings.mode is UpdateMode.STALE:
        yield from _stale_lines(asked_for, plan, settings)
    elif left_out := asked_for.left_out(plan):
        kinds = _kinds(left_out, asked_for.captured_only(plan))
        rows = counted(left_out, settings.unit)
        yield f"{rows} left out, with {_duration(settings)} already{kinds} (--update-mode={settings.mode})"


def going_on(plan: Plan, settings: Settings, not_run: Collection[str], run_id: str) -> str:
    """How to go on with the rows that a session did not get to.

    Args:
        not_run: ids of these rows, at least one.
        run_id: of the session.
    """
    rows = counted(len(not_run), settings.unit)
    if settings.read_only:
        return f"{rows} not run"
    unreplayed = len(plan.unreplayed().intersection(not_run))
    if settings.mode is not UpdateMode.ALL:
        return f"{rows} not run: the same command goes on with them"
    if unreplayed == len(not_run):
        return f"{rows} not run: the same command with --update-mode=unreplayed goes on with them"
    # Some have replayed durations of earlier runs.
    where = f'run != "{run_id}"' if settings.where is None else f'({settings.where}) and run != "{run_id}"'
    return f"{rows} not run: the same command with --where {shlex.quote(where)} goes on with them"


def after_success(settings: Settings, *, measured: int) -> Iterator[str]:
    """What a user may do next with a database of which rows were measured."""
    if measured and settings.writes:
        database = shlex.quote(os.path.relpath(settings.database))
        plot = f"opatlas plot {database} --output plots"
        yield f"next: `opatlas check {database}` tests the durations, `{plot}` draws them"


def _stale_lines(asked_for: AskedFor, plan: Plan, settings: Settings) -> Iterator[str]:
    """How many rows are stale, and why; how many are not."""
    counts = Counter(
        staleness
        for name, table in plan.tables.items()
        for case_id, staleness in table.staleness.items()
        if asked_for(name, case_id)
    )
    stale = {reason: count for reason, count in counts.most_common() if reason.is_stale}
    fresh = [f"{count:,} {reason.value}" for reason, count in counts.items() if not reason.is_stale]
    if never := asked_for.left_out(plan) - sum(counts[reason] for reason in counts if not reason.is_stale):
        fresh.append(f"{never:,} never replayed")
    why = f": {', '.join(f'{count:,} {reason.value}' for reason, count in stale.items())}" if stale else ""
    left_out = f"; left out: {', '.join(fresh)}" if fresh else ""
    yield f"{sum(stale.values()):,} stale{why}{left_out} (--update-mode=stale)"
    kind = settings.devices[0].kind
    if driver_version(kind) == "":
        yield f"the driver is not compared: {'nvidia-smi' if kind == 'cuda' else 'npu-smi'} does not tell its version"


def _duration(settings: Settings) -> str:
    return "a duration" if settings.mode is UpdateMode.MISSING_ONLY else "a replayed duration"


def _kinds(count: int, captured: int) -> str:
    return f" ({count - captured:,} replayed, {captured:,} captured only)" if captured else ""


def _selection(settings: Settings) -> str:
    """The options that select rows by their cells, as the user gave them."""
    status = f"--status={','.join(sorted(settings.status))}" if settings.status else ""
    where = f"--where {str(settings.where)!r}" if settings.where is not None else ""
    return " and ".join(option for option in (status, where) if option)
