"""Shares of the captured device time: of kernel types without a replay, and of launches without shapes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from opatlas.capture.launches import LaunchCounts
from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.formats import percent
from opatlas.row.table import RowTable


@dataclass(frozen=True)
class TimeShare:
    """The rows or launches of a kernel type; `share` is their share of the captured time, None if unknown."""

    kernel_type: str
    count: int
    share: float | None

    def __str__(self) -> str:
        return f"{self.kernel_type} {self.count:,}" + ("" if self.share is None else f" ({percent(self.share)})")


def captured_time_us(table: RowTable) -> float | None:
    """Returns the device time of all captured launches of a table, in microseconds.

    Returns:
        None if a captured duration lacks the number of its launches, as in tables of other tools.
    """
    captured = table.captured
    times = (captured.us * captured.samples)[captured.known].tolist()
    return None if any(map(math.isnan, times)) else sum(times)


def without_replay(rows: Mapping[str, int], time_us: Mapping[str, float | None]) -> list[TimeShare]:
    """Returns the kernel types without a replay, the longest device time first.

    Args:
        rows: their number of rows.
        time_us: captured device time of all kernel types of the database; None if unknown.
    """
    # If the number of launches of one kernel type is unknown, so are all shares.
    times = {name: time or 0.0 for name, time in time_us.items()} if None not in time_us.values() else {}
    return _shares(rows, times, sum(times.values()))


def rows_without_replay(database: Database, replayed: Collection[str]) -> tuple[int, list[TimeShare]]:
    """Returns the number of rows of a database, and the kernel types without a replay. Skips unreadable files."""
    rows: Counter[str] = Counter()
    time_us: dict[str, float | None] = {}
    for kernel_type in database.kernel_types():
        with suppress(OpAtlasError):
            table = database.read(kernel_type)
            rows[kernel_type], time_us[kernel_type] = len(table), captured_time_us(table)
    return rows.total(), without_replay({name: n for name, n in rows.items() if name not in replayed}, time_us)


def without_shapes(account: LaunchCounts) -> list[TimeShare]:
    """Returns the kernel types whose launches have no input shapes, the longest device time first."""
    return _shares(account.shapeless, account.shapeless_us, account.ingested_us + account.shapeless_us.total())


def _shares(counts: Mapping[str, int], times_us: Mapping[str, float], total_us: float) -> list[TimeShare]:
    order = sorted(counts, key=lambda name: (-times_us.get(name, 0.0), -counts[name], name))
    return [TimeShare(name, counts[name], times_us.get(name, 0.0) / total_us if total_us else None) for name in order]
