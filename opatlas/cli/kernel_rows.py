"""Finds small rows of a database for commands that try implementations."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import contextmanager
from importlib import import_module
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from opatlas.data.database import Database
from opatlas.data.row_copy import read_rows
from opatlas.errors import CellError
from opatlas.row.columns import INPUT_DTYPES
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
