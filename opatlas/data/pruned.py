"""The pruned rows of a database: rows without a duration that were moved to `pruned/`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from opatlas.data.csv_files import read_frame, write_frame
from opatlas.data.database import Database
from opatlas.row.signature import signatures

if TYPE_CHECKING:
    import pandas as pd

PRUNED_REASON = "Pruned Reason"


def pruned_path(database: Database, kernel_type: str) -> Path:
    """Returns the path of a kernel type's pruned rows. Raises OpAtlasError if the type cannot name a file."""
    return database.pruned_dir / database.csv_path(kernel_type).name


def pruned_signatures(database: Database, kernel_type: str) -> Sequence[str]:
    """Returns the signatures of a kernel type's pruned rows. Raises TableError."""
    path = pruned_path(database, kernel_type)
    return signatures(kernel_type, read_frame(path, kernel_type)) if path.exists() else ()


def add_pruned(database: Database, kernel_type: str, rows: pd.DataFrame) -> int:
    """Adds rows to the file of pruned rows, each once, and returns the number of added rows.

    Raises:
        OpAtlasError: the file cannot be read or written.
    """
    import pandas as pd

    path = pruned_path(database, kernel_type)
    there = [read_frame(path, kernel_type)] if path.exists() else []
    together = pd.concat([*there, rows], ignore_index=True).fillna("")
    before = sum(map(len, there))
    # Duplicates within the file stay.
    repeated = together.duplicated().to_numpy().copy()
    repeated[:before] = False
    if not repeated[before:].all():
        write_frame(together[~repeated], path)
    return int((~repeated[before:]).sum())
