"""Finds small rows of a database for commands that try implementations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from opatlas.data.database import Database
from opatlas.data.row_copy import read_rows
from opatlas.errors import CellError, OpAtlasError
from opatlas.row.columns import INPUT_DTYPES
from opatlas.row.location import list_databases
from opatlas.row.roofline import tensor_bytes
from opatlas.row.slots import row_slots

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def starter_database() -> Iterator[Database]:
    """Gives a database with the rows of a small model, for a machine without rows. Raises OpAtlasError."""
    with TemporaryDirectory(prefix="opatlas-starter-") as folder:
        database = Database(folder)
        import_module("opatlas.shapes.starter").write_starter(database)
        yield database


def smallest_rows(database: Database, kernel_types: Collection[str]) -> dict[str, list[Mapping[str, str]]]:
    """Returns for each kernel type the smallest row of each combination of input dtypes, the smallest first.

    Kernel types without a row that can be read have no entry.

    Raises:
        TableError: a file cannot be read.
    """
    found: dict[str, list[Mapping[str, str]]] = {}
    for kernel_type in sorted(set(kernel_types).intersection(database.kernel_types())):
        sizes: dict[str, tuple[int, Mapping[str, str]]] = {}
        for cells in read_rows(database, kernel_type):
            try:
                inputs, outputs = row_slots(kernel_type, cells)
            except CellError:
                # A session reports the wrong cell.
                continue
            dtypes, size = cells[INPUT_DTYPES], tensor_bytes((*inputs, *outputs)) or 0
            if dtypes not in sizes or size < sizes[dtypes][0]:
                sizes[dtypes] = (size, cells)
        if sizes:
            found[kernel_type] = [cells for _, cells in sorted(sizes.values(), key=lambda sized: sized[0])]
    return found


def sample_rows(kernel_types: Sequence[str], database: Path | None) -> Mapping[str, Mapping[str, str]]:
    """Returns a small row of each kernel type. Raises OpAtlasError where no database has one."""
    found: dict[str, Mapping[str, str]] = {}
    for path in [database] if database is not None else list_databases():
        lacking = set(kernel_types).difference(found)
        found |= {name: rows[0] for name, rows in smallest_rows(Database(path), lacking).items()}
    if database is None and (lacking := set(kernel_types).difference(found)):
        with starter_database() as starter:
            found |= {name: rows[0] for name, rows in smallest_rows(starter, lacking).items()}
    if without := [name for name in kernel_types if name not in found]:
        where = database or "no default database"
        has = "has no row" if database is not None else "has a row"
        missing = ",".join(without)
        raise OpAtlasError(
            f"{where} {has} of {', '.join(without)}, from which the arguments would be read: "
            f"`opatlas shapes --ops {missing} --rows 4 --database-path DB` makes rows, --database-path DB takes them"
        )
    return found
