"""The report of an ingest: every captured duration that changed, the furthest first."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from database.ingest.apply import NAMED_BY, TOLD, DurationChange
from database.store import Database, write_rows

HEADER = (
    *("Kernel Type", *NAMED_BY),
    *(f"{when} {column}" for column in TOLD for when in ("Old", "New")),
    "Ratio (new/old)",
)


def write_report(database: Database, changes: Sequence[DurationChange]) -> Path:
    """Writes `reports/ingest_{time}.csv`; gives its path. Raises OpAtlasError."""
    path = database.free_report("ingest", time.time())
    rows = [
        (
            *(change.kernel_type, *(change.cells[column] for column in NAMED_BY)),
            *(cells[column] for column in TOLD for cells in (change.before, change.after)),
            f"{change.after_us / change.before_us:.4f}",
        )
        for change in sorted(changes, key=lambda change: change.distance, reverse=True)
    ]
    write_rows(path, HEADER, rows)
    return path
