"""Which databases are compared: the implementations of a base, or the databases that a user names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from opatlas.errors import OpAtlasError
from opatlas.files import absolute_path
from opatlas.implementations.implementation import default_name
from opatlas.model.location import device_kind, implementation_label, implementation_of, parse_path
from opatlas.model.versions import version_key
from opatlas.report.plots.timed_rows import database_device, expect_tables
from opatlas.store.database import Database


@dataclass(frozen=True)
class ComparedDatabase:
    """A database in a comparison.

    Attributes:
        name: its name, unique in the comparison: the implementation, or a part of the path.
        path: the folder of its CSVs.
        version: the version of the implementation; "" where the path does not tell it.
        is_default: whether its rows are those of the device's default implementation.
    """

    name: str
    path: Path
    version: str = ""
    is_default: bool = False

    @property
    def label(self) -> str:
        """The name and the version: `flashinfer 0.5.3`."""
        return self.name if self.version in self.name else implementation_label(self.name, self.version)


def implementations_of(base: Path) -> list[ComparedDatabase]:
    """Returns `with_implementations`. Raises OpAtlasError also where no other implementation was measured."""
    found = with_implementations(base)
    if len(found) == 1:
        raise OpAtlasError(
            f"{base}: no other implementation was measured on its rows: measure one "
            f"(pytest bench/ --implementation NAME), or name several databases"
        )
    return found


def with_implementations(base: Path) -> list[ComparedDatabase]:
    """Returns a base database, and the newest version of each implementation that was measured on its rows.

    They lie in `implementations/` of the base, or beside a default database of the same device. Among the latter,
    those of the base's torch and CUDA or CANN precede.

    Raises:
        OpAtlasError: the folder is missing or has no CSVs.
    """
    base = absolute_path(base)
    expect_tables(base)
    place = parse_path(base)
    folders = list(Database(base).implementations_dir.glob("*-*"))
    if place is not None and not implementation_of(base)[0]:
        folders += base.parent.parent.glob("*/*")
    software = dict(place[1]) if place is not None else {}

    def age(path: Path) -> tuple[object, ...]:
        theirs = parse_path(path)
        version = implementation_of(path)[1]
        same = theirs is not None and all(theirs[1].get(name, own) == own for name, own in software.items())
        return same, version_key(version), path.name

    newest: dict[str, Path] = {}
    for path in sorted(folders, key=age):
        name = implementation_of(path)[0]
        if name and not path.is_symlink() and next(path.glob("[!.]*.csv"), None):
            newest[name] = path
    return [_database(base), *(_database(newest[name]) for name in sorted(newest))]


def named_databases(paths: Sequence[Path]) -> list[ComparedDatabase]:
    """Returns the databases that a user names, under names that tell them apart.

    Raises:
        OpAtlasError: a folder is missing or has no CSVs, or is named twice.
    """
    folders = [absolute_path(path) for path in paths]
    for number, folder in enumerate(folders):
        expect_tables(folder)
        if folder in folders[:number]:
            raise OpAtlasError(f"{folder}: named twice: name each database once")
    found = [_database(folder) for folder in folders]
    namings: Iterable[Callable[[ComparedDatabase], str]] = (
        lambda each: each.name,
        lambda each: each.label,
        lambda each: each.path.name,
        lambda each: "/".join(each.path.parts[-2:]),
        lambda each: str(each.path),
    )
    names = next(names for naming in namings if len(set(names := [naming(each) for each in found])) == len(found))
    return [replace(each, name=name) for each, name in zip(found, names, strict=True)]


def _database(path: Path) -> ComparedDatabase:
    name, version = implementation_of(path)
    if name:
        return ComparedDatabase(name, path, version)
    return ComparedDatabase(default_name(device_kind(database_device(path))), path, is_default=True)
