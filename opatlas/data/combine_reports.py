"""The CSVs of a combination in `reports/`: conflicts, and rows whose machines disagree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from opatlas.data.combine_table import Conflict
from opatlas.data.csv_files import write_rows
from opatlas.data.database import Database
from opatlas.data.pool import SPREAD_LIMIT, PooledRow, pooled_cells
from opatlas.row.columns import INPUT_SHAPES, POOLED, RUN_ID

_DISAGREEMENT_HEADER = ("Kernel Type", INPUT_SHAPES, *POOLED, RUN_ID)
_HEADER = (
    *("Kernel Type", "Signature", INPUT_SHAPES),
    *("What", "Kept", "Kept Run", "Dropped", "Dropped Run", "Ratio", "Source"),
)


def write_conflicts(database: Database, conflicts: Sequence[Conflict], at: float) -> Path | None:
    """Writes the list of conflicts to `reports/`; returns its path, or None without conflicts.

    Raises:
        OpAtlasError: the file cannot be written.
    """
    if not conflicts:
        return None
    path = database.new_report_path("combine_conflicts", at)
    write_rows(path, _HEADER, map(_cells, conflicts))
    return path


def _cells(conflict: Conflict) -> tuple[str, ...]:
    ratio = conflict.ratio
    return (
        *(conflict.kernel_type, conflict.signature, conflict.input_shapes, conflict.what),
        *(conflict.kept, conflict.kept_run, conflict.dropped, conflict.dropped_run),
        *("" if ratio is None else f"{ratio:.4f}", conflict.source),
    )


def write_disagreements(database: Database, pooled: Sequence[PooledRow], at: float) -> Path | None:
    """Writes the rows whose machines disagree to `reports/`, the worst first; returns the path, or None without any.

    Raises:
        OpAtlasError: the file cannot be written.
    """
    rows = disagreeing(pooled)
    if not rows:
        return None
    path = database.new_report_path("pool_disagreements", at)
    write_rows(path, _DISAGREEMENT_HEADER, map(_disagreement_cells, rows))
    return path


def _disagreement_cells(row: PooledRow) -> tuple[str, ...]:
    cells = pooled_cells(row)
    return (row.kernel_type, row.input_shapes, *(cells[name] for name in POOLED), row.representative)


def disagreeing(pooled: Sequence[PooledRow]) -> list[PooledRow]:
    """Returns the rows whose machines differ by more than SPREAD_LIMIT, the worst first."""
    found = [row for row in pooled if row.spread is not None and row.spread > SPREAD_LIMIT]
    return sorted(found, key=lambda row: -(row.spread or 0))
