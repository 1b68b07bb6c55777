"""Pruned rows: rows without a duration that were moved to `pruned/`, and can be moved back.

A pruned row stays in `pruned/` if the CSV has a row of the same signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from opatlas.data.cells import TableEdit, positions_by_key
from opatlas.data.csv_files import read_frame, write_frame
from opatlas.data.database import Database
from opatlas.errors import OpAtlasError
from opatlas.row.record import RowName
from opatlas.row.signature import RowChoice, row_cells, signatures
from opatlas.row.table import RowTable

PRUNED_REASON = "Pruned Reason"


def pruned_path(database: Database, kernel_type: str) -> Path:
    """Returns the path of a kernel type's pruned rows. Raises OpAtlasError if the type cannot name a file."""
    return database.pruned_dir / database.csv_path(kernel_type).name


def pruned_signatures(database: Database, kernel_type: str) -> Sequence[str]:
    """Returns the signatures of a kernel type's pruned rows. Raises TableError."""
    path = pruned_path(database, kernel_type)
    return signatures(kernel_type, read_frame(path, kernel_type)) if path.exists() else ()


def append_pruned(database: Database, kernel_type: str, rows: pd.DataFrame) -> None:
    """Appends rows to the file of pruned rows; a row that is pruned twice has two lines."""
    path = pruned_path(database, kernel_type)
    if path.exists():
        rows = pd.concat([read_frame(path, kernel_type), rows]).fillna("")
    write_frame(rows, path)


@dataclass
class UnpruneResult:
    """The result of `unprune`.

    Attributes:
        restored: rows that are in the CSVs again.
        kept: rows that stay in `pruned/`, because the CSV has a row of the same signature.
        problems: files that could not be read or written.
    """

    restored: list[RowName] = field(default_factory=list)
    kept: list[RowName] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def unprune(database: Database, chosen: RowChoice) -> UnpruneResult:
    """Moves pruned rows back, file by file: adds them to the CSV, then removes them from `pruned/`.

    Of several pruned rows with one signature, the last one is moved and the others stay.

    Raises:
        OpAtlasError: the database cannot be locked.
    """
    unpruned = UnpruneResult()
    with database.lock():
        for path in sorted(database.pruned_dir.glob("[!.]*.csv")):
            try:
                _unprune_table(database, path.stem, chosen, unpruned)
            except OpAtlasError as error:
                unpruned.problems.append(str(error))
    return unpruned


def _unprune_table(database: Database, kernel_type: str, chosen: RowChoice, unpruned: UnpruneResult) -> None:
    path = pruned_path(database, kernel_type)
    pruned = read_frame(path, kernel_type)
    table = database.read_or_empty(kernel_type)
    known = set(signatures(kernel_type, table.frame))
    restored: dict[int, RowName] = {}
    kept = []
    for signature, positions in positions_by_key(signatures(kernel_type, pruned)).items():
        if not chosen.holds(kernel_type, signature):
            continue
        row = RowName(kernel_type, signature)
        if signature in known:
            kept.append(row)
        else:
            restored[positions[-1]] = row
            kept += [row] * (len(positions) - 1)
    if restored:
        database.write(RowTable(kernel_type, table.path, _with_rows(table.frame, pruned.iloc[sorted(restored)])))
        left = pruned.drop(index=pruned.index[list(restored)])
        if left.empty:
            path.unlink()
        else:
            write_frame(left, path)
    unpruned.restored += restored.values()
    unpruned.kept += kept


def _with_rows(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    edit = TableEdit(frame)
    for cells in row_cells(rows.drop(columns=PRUNED_REASON, errors="ignore")):
        # A column that the CSV lacks is added only for non-empty cells.
        edit.append({name: cell for name, cell in cells.items() if cell or name in frame.columns})
    return edit.frame()
