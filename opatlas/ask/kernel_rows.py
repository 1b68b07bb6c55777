"""Finds small rows of kernel types for commands that try implementations."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from opatlas.data.database import Database
from opatlas.errors import CellError, OpAtlasError
from opatlas.row.location import list_databases
from opatlas.row.roofline import tensor_bytes
from opatlas.row.slots import row_slots


def sample_rows(kernel_types: Sequence[str], database: Path | None) -> Mapping[str, Mapping[str, str]]:
    """Returns a small row of each kernel type: of a database, of any default one, or of a small model.

    Raises:
        OpAtlasError: no database has one, or a file cannot be read.
    """
    found: dict[str, Mapping[str, str]] = {}
    for path in [database] if database is not None else list_databases():
        found |= _smallest_rows(Database(path), set(kernel_types).difference(found))
    if database is None and (lacking := set(kernel_types).difference(found)):
        with TemporaryDirectory(prefix="opatlas-starter-") as folder:
            import_module("opatlas.shapes.starter").write_starter(Database(folder))
            found |= _smallest_rows(Database(folder), lacking)
    if without := [name for name in kernel_types if name not in found]:
        where = database or "no default database"
        has = "has no row" if database is not None else "has a row"
        missing = ",".join(without)
        raise OpAtlasError(
            f"{where} {has} of {', '.join(without)}, from which the arguments would be read: "
            f"`opatlas shapes --ops {missing} --rows 4 --database-path DB` makes rows, --database-path DB takes them"
        )
    return found


def _smallest_rows(database: Database, kernel_types: Collection[str]) -> dict[str, Mapping[str, str]]:
    """Returns the smallest row of each kernel type that has a row that can be read. Raises TableError."""
    found: dict[str, Mapping[str, str]] = {}
    for kernel_type in sorted(set(kernel_types).intersection(database.kernel_types())):
        sizes: list[tuple[int, Mapping[str, str]]] = []
        for cells in database.read_or_empty(kernel_type).identities():
            try:
                inputs, outputs = row_slots(kernel_type, cells)
            except CellError:
                # A session reports the wrong cell.
                continue
            sizes.append((tensor_bytes((*inputs, *outputs)) or 0, cells))
        if sizes:
            found[kernel_type] = min(sizes, key=lambda sized: sized[0])[1]
    return found
