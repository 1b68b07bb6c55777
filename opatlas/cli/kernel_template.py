"""Writes a file for each kernel type that a user wants to implement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from opatlas.cli.kernel_rows import smallest_rows, starter_database
from opatlas.engine.kernel_facts import replays_of_bench
from opatlas.errors import OpAtlasError
from opatlas.model.location import list_databases
from opatlas.store.csv_files import write_text
from opatlas.store.database import Database
from opatlas.text import suggest


def write_templates(folder: Path, kernel_types: Sequence[str], database: Path | None) -> list[Path]:
    """Writes a file for each kernel type into a folder, and returns the files.

    Args:
        database: has the sample rows; None: the first default database that has one.

    Raises:
        OpAtlasError: a kernel type has no replay or no row, or a file exists: nothing is written.
    """
    replays = replays_of_bench()
    # A file whose name begins with an underscore is no kernel's; the mark has the name of the kernel type.
    paths = {kernel_type: folder / f"{kernel_type.lstrip('_')}.py" for kernel_type in kernel_types}
    for kernel_type in kernel_types:
        if kernel_type not in replays:
            raise OpAtlasError(
                f"--ops {kernel_type}: there is no such kernel type with a replay{suggest(kernel_type, replays)}"
            )
        if (path := paths[kernel_type]).exists():
            raise OpAtlasError(f"{path} exists: nothing is written; remove it, or name another folder")
    rows = sample_rows(kernel_types, database)
    # Imported here because it imports torch.
    from opatlas.engine.kernel_template import template

    texts = {path: template(folder, kernel_type, rows[kernel_type]) for kernel_type, path in paths.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in texts.items():
        write_text(path, text)
    return list(texts)


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
        raise OpAtlasError(
            f"{where} {has} of {', '.join(without)}, from which the arguments would be read: name a --database-path"
        )
    return found
