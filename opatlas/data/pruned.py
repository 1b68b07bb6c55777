"""Pruned rows: rows without a duration that were moved to `pruned/`, and moved back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from opatlas.data.csv_files import read_table, text_table, write_table
from opatlas.data.database import Database
from opatlas.row.table import RowTable

PRUNED_REASON = "Pruned Reason"


def pruned_path(database: Database, kernel_type: str) -> Path:
    """Returns the path of a kernel type's pruned rows. Raises OpAtlasError if the type cannot name a file."""
    return database.pruned_dir / database.csv_path(kernel_type).name


def pruned_types(database: Database) -> list[str]:
    """Returns the kernel types that have pruned rows, sorted."""
    return sorted(path.stem for path in database.pruned_dir.glob("[!.]*.csv"))


def read_pruned(database: Database, kernel_type: str) -> RowTable:
    """Reads the pruned rows of a kernel type; none without a file. Raises TableError."""
    path = pruned_path(database, kernel_type)
    return RowTable(kernel_type, path, read_table(path, kernel_type) if path.exists() else text_table(()))


def pruned_signatures(database: Database, kernel_type: str) -> Sequence[str]:
    """Returns the signatures of a kernel type's pruned rows. Raises TableError."""
    return read_pruned(database, kernel_type).signatures if pruned_path(database, kernel_type).exists() else ()


def add_pruned(database: Database, kernel_type: str, rows: Iterable[Mapping[str, str]]) -> int:
    """Adds rows to the file of pruned rows, each once, and returns the number of added rows.

    Raises:
        OpAtlasError: the file cannot be read or written.
    """
    table = read_pruned(database, kernel_type)
    there = list(table.rows())
    known = {frozenset((name, cell) for name, cell in row.items() if cell) for row in there}
    new = {frozenset((name, cell) for name, cell in row.items() if cell): row for row in rows}
    added = [row for content, row in new.items() if content not in known]
    if added:
        columns = dict.fromkeys([*table.columns, *(name for row in added for name in row)])
        write_table(text_table(columns, [*there, *added]), table.path)
    return len(added)
