"""How much of the captured device time each kernel type takes, and which of it no replay measures."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pandas as pd

from database.closest import closest
from database.numbers import whole
from database.schema import PROFILING_AVERAGE, PROFILING_SAMPLES
from database.statistics import valid_duration
from database.terminal import counted, folded

_SHOWN = 8
#: How like two names are at least that may differ in the version of a kernel alone: MatMul, MatMulV2.
_SAME_KERNEL = 0.8


def captured_time_us(frame: pd.DataFrame) -> float | None:
    """Returns the device time of all captured launches of a table, in microseconds.

    Returns:
        None if a captured duration stands without the number of its launches, as in the tables of other tools.
    """
    if PROFILING_AVERAGE not in frame.columns:
        return 0.0
    counts = frame[PROFILING_SAMPLES] if PROFILING_SAMPLES in frame.columns else [""] * len(frame)
    total = 0.0
    for cell, count in zip(frame[PROFILING_AVERAGE], counts, strict=True):
        average_us = valid_duration(cell)
        if average_us is not None:
            launches = whole(count)
            if launches is None:
                return None
            total += average_us * launches
    return total


def without_replay_lines(
    rows: Mapping[str, int], time_us: Mapping[str, float | None], replayed: Collection[str], indent: int = 0
) -> list[str]:
    """Returns the kernel types without a replay, the ones that take the most device time first, and what to do.

    Args:
        rows: how many rows have none, by kernel type.
        time_us: captured device time of all kernel types of the database; None where it is not known.
        replayed: kernel types that have a replay, one of which may be another name of such a kernel.
        indent: columns before the lines.
    """
    if not rows:
        return []
    times = {name: time or 0.0 for name, time in time_us.items()}
    # One type without a number of launches, and no share is right.
    total = sum(times.values()) if None not in time_us.values() else 0.0

    def share(names: Collection[str]) -> str:
        part = sum(times.get(name, 0.0) for name in names) / total if total else 0.0
        return "" if not total else f"{100 * part:.1f} %" if part >= 0.001 or not part else "below 0.1 %"

    order = sorted(rows, key=lambda name: (-times.get(name, 0.0) if total else 0.0, -rows[name], name))
    named = [
        f"{name} {rows[name]:,}{f' ({share([name])})' if total else ''}{closest(name, replayed, least=_SAME_KERNEL)}"
        for name in order[:_SHOWN]
    ]
    more = [f"{len(order) - _SHOWN} more"] if len(order) > _SHOWN else []
    of_time = f", {share(order)} of the captured device time" if total else ""
    count = f"{counted(sum(rows.values()), 'row')} of {counted(len(rows), 'kernel type')}{of_time}"
    return [
        folded(f"without a replay: {count}: {', '.join(named + more)}", indent=indent),
        " " * indent + "docs/adding-a-kernel.md tells how to add a replay",
    ]
