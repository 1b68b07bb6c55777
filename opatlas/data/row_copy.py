"""Copies rows from one database to another without durations, for another implementation of the same kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.data.pruned import pruned_signatures
from opatlas.row.columns import POOLED, is_profiling_column
from opatlas.row.communication import row_kind
from opatlas.row.table import RowTable


def read_rows(database: Database, kernel_type: str) -> list[Mapping[str, str]]:
    """Returns the rows of a kernel type without durations and statuses, each signature once; none without a file.

    Raises:
        TableError: the file cannot be read.
    """
    table = database.read_or_empty(kernel_type)
    kept = [name for name in table.columns if not _is_of_duration(kernel_type, name)]
    return [{name: row[name] for name in kept} for row in table.rows(list(table.by_signature.values()))]


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


def with_captured(table: RowTable, captured: RowTable) -> RowTable:
    """Returns the rows of a table with the captured durations that another table has for them."""
    first = captured.by_signature
    columns = {name: table.cells(name) for name in table.columns if not is_profiling_column(name)}
    for name in filter(is_profiling_column, captured.columns):
        theirs = captured.cells(name)
        columns[name] = [theirs[first[each]] if each in first else "" for each in table.signatures]
    arrays = {name: pa.array(cells, type=pa.string()) for name, cells in columns.items()}
    return RowTable(table.kernel_type, table.path, pa.table(arrays))


def _is_of_duration(kernel_type: str, column: str) -> bool:
    """Returns whether a column belongs to a duration, replayed or captured, and not to the identity of a row."""
    return (
        column in (*row_kind(kernel_type).duration_columns, *POOLED)
        or row_kind(kernel_type).is_measured(column)
        or is_profiling_column(column)
    )
