"""Why a session ran no row, or not all of its rows, and which command goes on or comes next."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from database.merge import UpdateMode
from database.terminal import counted
from plugins.asked_for import AskedFor
from plugins.plan import Plan
from plugins.settings import Settings


def nothing_to_do(asked_for: AskedFor, plan: Plan, settings: Settings) -> Iterator[str]:
    """Why none of the rows that were asked for is to be run; nothing where rows are to be run."""
    unit = settings.unit
    if left_out := asked_for.left_out(plan):
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
        yield f"nothing to do: none of {counted(not_selected, unit)} has the status {_any_of(settings.status)}"


def left_out_lines(asked_for: AskedFor, plan: Plan, settings: Settings) -> Iterator[str]:
    """How many of the rows that were asked for are not selected, and how many the update mode leaves out."""
    if not_selected := asked_for.not_selected(plan):
        yield f"{counted(not_selected, settings.unit)} without the status {_any_of(settings.status)} (--status)"
    if left_out := asked_for.left_out(plan):
        kinds = _kinds(left_out, asked_for.captured_only(plan))
        rows = counted(left_out, settings.unit)
        yield f"{rows} left out, with {_duration(settings)} already{kinds} (--update-mode={settings.mode})"


def going_on(plan: Plan, settings: Settings, not_run: Collection[str]) -> str:
    """How to go on with the rows that a session did not get to.

    Args:
        not_run: ids of these rows, at least one.
    """
    rows = counted(len(not_run), settings.unit)
    if settings.read_only:
        return f"{rows} not run"
    unreplayed = len(plan.unreplayed().intersection(not_run))
    if settings.mode is not UpdateMode.ALL:
        return f"{rows} not run: the same command goes on with them"
    if unreplayed:
        those = "them" if unreplayed == len(not_run) else f"{unreplayed:,} of them: the others have replayed durations"
        return f"{rows} not run: the same command with --update-mode=unreplayed goes on with {those}"
    again = f"--update-mode=all runs such {settings.unit}s"
    return f"{rows} not run: they have replayed durations from before, and only {again}"


def after_success(settings: Settings, *, measured: int) -> Iterator[str]:
    """What a user may do next with a database of which rows were measured."""
    if measured and settings.writes:
        yield f"next: `opatlas plot {settings.database} --output plots` draws the durations that the database holds"


def _duration(settings: Settings) -> str:
    return "a duration" if settings.mode is UpdateMode.MISSING_ONLY else "a replayed duration"


def _kinds(count: int, captured: int) -> str:
    return f" ({count - captured:,} replayed, {captured:,} captured only)" if captured else ""


def _any_of(words: Collection[str]) -> str:
    return " or ".join(sorted(words))
