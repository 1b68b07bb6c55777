"""Copies rows from one database to another without durations, for another implementation of the same kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from opatlas.data.cells import duration_columns, is_measured_column
from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.data.pruned import pruned_signatures
from opatlas.row.columns import POOLED, is_profiling_column
from opatlas.row.signature import row_cells, signatures

if TYPE_CHECKING:
    import pandas as pd


def read_rows(database: Database, kernel_type: str) -> list[Mapping[str, str]]:
    """Returns the rows of a kernel type without durations and statuses, each signature once; none without a file.

    Raises:
        TableError: the file cannot be read.
    """
    frame = database.read_or_empty(kernel_type).frame
    columns = [name for name in frame.columns if not is_of_duration(kernel_type, name)]
    first = dict(zip(reversed(signatures(kernel_type, frame)), reversed(range(len(frame))), strict=True))
    return list(row_cells(frame[columns].iloc[sorted(first.values())]))


def add_rows(database: Database, rows: Mapping[str, Sequence[Mapping[str, str]]]) -> int:
    """Appends the rows that a database lacks, without durations, and returns their number.

    Args:
        rows: rows by kernel type; those with a signature that the database has, or has pruned, are left out.

    Raises:
        OpAtlasError: a file cannot be read or written.
    """
    added = 0
    for kernel_type, cells in rows.items():
        with database.lock():
            fold = TableFold(database.read_or_empty(kernel_type))
            new = fold.append_missing(cells, pruned_signatures(database, kernel_type))
            if new:
                fold.write(database)
                added += new
    return added


def with_captured(kernel_type: str, frame: pd.DataFrame, captured: pd.DataFrame) -> pd.DataFrame:
    """Returns the rows of a table with the captured durations that another table has for them."""
    columns = [name for name in captured.columns if is_profiling_column(name)]
    by_signature = captured[columns].set_axis(signatures(kernel_type, captured))
    found = by_signature[~by_signature.index.duplicated()].reindex(signatures(kernel_type, frame), fill_value="")
    own = frame[[name for name in frame.columns if not is_profiling_column(name)]]
    joined: pd.DataFrame = own.join(found.set_axis(own.index))
    return joined


def is_of_duration(kernel_type: str, column: str) -> bool:
    """Returns whether a column belongs to a duration, replayed or captured, and not to the identity of a row."""
    return (
        column in (*duration_columns(kernel_type), *POOLED)
        or is_measured_column(kernel_type, column)
        or is_profiling_column(column)
    )
