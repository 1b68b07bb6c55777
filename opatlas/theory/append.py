"""Theory rows into the CSVs of a database."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from opatlas.model.schema import AVERAGE, BASE, with_columns
from opatlas.model.signature import signatures
from opatlas.store.database import Database, Table
from opatlas.theory.catalog import Kernel
from opatlas.theory.plan import KernelPlan, Request, plan_kernel


def table_of(database: Database, kernel_type: str) -> Table:
    """The rows of a kernel type; none where there is no file. Raises OpAtlasError."""
    path = database.csv_path(kernel_type)
    if path.exists():
        return database.read(kernel_type)
    return Table(kernel_type, path, pd.DataFrame({column: pd.Series(dtype=str) for column in (*BASE, AVERAGE)}))


def add_theory_rows(
    database: Database, kernel: Kernel, request: Request, *, forms_of_database: bool = True
) -> KernelPlan:
    """Appends what a run asks for and the database does not have; gives what was appended.

    The file is replaced in one step. Rows that somebody else adds while these are chosen are not added twice.

    Args:
        forms_of_database: rows take the dtypes and formats of those that are there.

    Raises:
        OpAtlasError: a file that cannot be read or written; it is as it was.
    """
    path = database.csv_path(kernel.kernel_type)
    # Before it is read: whatever changes later must be seen.
    stamp = _stamp(path)
    table = table_of(database, kernel.kernel_type)
    plan = plan_kernel(kernel, table, request, forms_of_database=forms_of_database)
    if not plan.signatures:
        return plan
    with database.lock():
        if _stamp(path) != stamp:
            table = table_of(database, kernel.kernel_type)
            known = set(signatures(kernel.kernel_type, table.frame))
            plan = plan.without(known)
        if plan.signatures:
            database.write(Table(kernel.kernel_type, table.path, _joined(table.frame, plan.frame)))
    return plan


def _joined(frame: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """Both, no column moved, and new ones where their group is."""
    columns = with_columns([str(name) for name in frame.columns], [str(name) for name in new.columns])
    if frame.empty:
        frame = new.iloc[:0]
    parts = [part.reindex(columns=columns, fill_value="") for part in (frame, new)]
    joined: pd.DataFrame = pd.concat(parts, ignore_index=True)
    return joined


def _stamp(path: Path) -> tuple[int, int, int] | None:
    """What tells one state of a file from another; None where there is no file."""
    if not path.exists():
        return None
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns
