"""Moves pruned rows back into the CSVs.

A pruned row stays in `pruned/` if the CSV has a row of the same signature.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from opatlas.data.cells import positions_by_key
from opatlas.data.csv_files import read_frame, write_frame
from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.data.pruned import PRUNED_REASON, pruned_path
from opatlas.errors import OpAtlasError
from opatlas.row.record import RowName
from opatlas.row.signature import RowChoice, row_cells, signatures


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
    fold = TableFold(database.read_or_empty(kernel_type))
    restored: dict[int, RowName] = {}
    kept = []
    for signature, positions in positions_by_key(signatures(kernel_type, pruned)).items():
        if not chosen.holds(kernel_type, signature):
            continue
        row = RowName(kernel_type, signature)
        if signature in fold.positions:
            kept.append(row)
        else:
            restored[positions[-1]] = row
            kept += [row] * (len(positions) - 1)
    if restored:
        for cells in row_cells(pruned.iloc[sorted(restored)].drop(columns=PRUNED_REASON, errors="ignore")):
            fold.append({name: cell for name, cell in cells.items() if cell})
        fold.write(database)
        left = pruned.drop(index=pruned.index[list(restored)])
        if left.empty:
            path.unlink()
        else:
            write_frame(left, path)
    unpruned.restored += restored.values()
    unpruned.kept += kept
