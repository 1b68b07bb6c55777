"""Theory rows into the CSVs of a database."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from database.schema import AVERAGE, BASE
from database.signature import signatures
from database.store import Database, Table
from shapes.rows import TheoryRow


def append_rows(database: Database, rows: Iterable[TheoryRow]) -> int:
    """Appends the rows whose signature is not there yet, their durations empty; gives their number.

    Raises:
        OpAtlasError: a file that cannot be read or written. Each file is replaced in one step, so
            those before it are complete and those after it are as they were.
    """
    by_type: dict[str, dict[str, TheoryRow]] = {}
    for row in rows:
        by_type.setdefault(row.kernel_type, {}).setdefault(row.signature(), row)
    appended = 0
    with database.lock():
        for kernel_type, candidates in by_type.items():
            appended += _append(database, kernel_type, candidates)
    return appended


def _append(database: Database, kernel_type: str, candidates: dict[str, TheoryRow]) -> int:
    path = database.csv_path(kernel_type)
    if path.exists():
        table = database.read(kernel_type)
    else:
        table = Table(kernel_type, path, pd.DataFrame({column: pd.Series(dtype=str) for column in (*BASE, AVERAGE)}))
    known = set(signatures(kernel_type, table.frame))
    new = [row.cells() for signature, row in candidates.items() if signature not in known]
    if new:
        frame = pd.concat([table.frame, pd.DataFrame(new, dtype=str)], ignore_index=True).fillna("")
        database.write(Table(kernel_type, path, frame))
    return len(new)
