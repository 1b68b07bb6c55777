"""Pruned rows: `pruned/{KernelType}.csv` holds the rows that were taken out of a CSV, and why."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from database.store import Database, read_frame, write_frame

PRUNED_REASON = "Pruned Reason"


def pruned_path(database: Database, kernel_type: str) -> Path:
    """Where the pruned rows of a kernel type are. Raises OpAtlasError if the type cannot name a file."""
    return database.pruned_dir / database.csv_path(kernel_type).name


def append_pruned(database: Database, kernel_type: str, rows: pd.DataFrame) -> None:
    """Adds rows to the file of pruned ones. It only grows: a row that comes back and is pruned again stands twice."""
    path = pruned_path(database, kernel_type)
    if path.exists():
        rows = pd.concat([read_frame(path, kernel_type), rows]).fillna("")
    write_frame(rows, path)
