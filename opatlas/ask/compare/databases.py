"""Which databases are compared: the implementations of a base, or the databases that a user names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from opatlas.data.database import Database, expect_tables
from opatlas.data.origin import database_device
from opatlas.errors import OpAtlasError
from opatlas.files import absolute_path
from opatlas.row.location import device_kind, implementation_label, implementation_of, parse_path
from opatlas.row.table import Row
from opatlas.row.versions import version_key
from opatlas.run.implementation import default_name

if TYPE_CHECKING:
    from opatlas.ask.compare.calls import RowCall


@dataclass(frozen=True)
class CallSource:
    """Where the calls of a database come from.

    Attributes:
        kernel_types: those that may have calls.
        read: returns the rows of a kernel type by signature; raises OpAtlasError.
    """

    kernel_types: Sequence[str]
    read: Callable[[str], Mapping[str, RowCall]]


def calls_in(path: Path, call_of: Callable[[Row], RowCall], kernel_types: Sequence[str]) -> CallSource:
    """Returns the calls that a function makes of the rows in the CSVs of a folder."""

    def read(kernel_type: str) -> Mapping[str, RowCall]:
        table = Database(path).read_or_empty(kernel_type)
        return {signature: call_of(table.row(i)) for signature, i in table.by_signature.items()}

    return CallSource(kernel_types, read)


@dataclass(frozen=True)
class ComparedDatabase:
    """A database in a comparison.

    Attributes:
        name: its name, unique in the comparison: the implementation, a part of the path, or the state.
        path: the folder of its CSVs.
        version: the version of the implementation; "" where the path does not tell it.
        is_default: whether its rows are those of the device's default implementation.
        state: which of its states is compared: a git revision, a run, or captures; "" for the replays in its CSVs.
        source: where its calls come from; None for the replays in its CSVs.
    """

    name: str
    path: Path
    version: str = ""
    is_default: bool = False
    state: str = ""
    source: CallSource | None = field(default=None, compare=False, repr=False)

    @property
    def label(self) -> str:
        """The name and the version: `flashinfer 0.5.3`."""
        return self.name if self.version in self.name else implementation_label(self.name, self.version)

    @property
    def place(self) -> str:
        """The folder, and the state."""
        return f"{self.path}@{self.state}" if self.state else str(self.path)

    def runs_as(self, other: ComparedDatabase) -> bool:
        """Returns whether both have the same implementation, so that not implementations but times are compared."""
        return implementation_of(self.path)[0] == implementation_of(other.path)[0]

    @cached_property
    def calls(self) -> CallSource:
        """Where its calls come from."""
        # A query compares no calls.
        from opatlas.ask.compare.calls import replayed_call

        return self.source or calls_in(self.path, replayed_call, Database(self.path).kernel_types_and_messages())


def implementations_of(base: Path) -> list[ComparedDatabase]:
    """Returns `with_implementations`. Raises OpAtlasError also where no other implementation was measured."""
    found = with_implementations(base)
    if len(found) == 1:
        raise OpAtlasError(
            f"{base}: no other implementation was measured on its rows: measure one "
            f"(opatlas bench --implementation torch,NAME), or name several databases"
        )
    return found


def with_implementations(base: Path) -> list[ComparedDatabase]:
    """Returns a base database, and the newest version of each implementation that was measured on its rows.

    They lie in `implementations/` of the base, or beside a default database of the same device. Among the latter,
    those of the base's torch and CUDA or CANN precede, and those with another remark behind the versions are left out:
    rows of `torch2.11.0_cuda13.0_warm` are compared with those of `flashinfer0.5.3_torch2.11.0_cuda13.0_warm`.

    Raises:
        OpAtlasError: the folder is missing or has no CSVs.
    """
    base = absolute_path(base)
    expect_tables(base)
    place = parse_path(base)
    folders = list(Database(base).implementations_dir.glob("*-*"))
    if place is not None and not implementation_of(base)[0]:
        folders += [path for path in base.parent.parent.glob("*/*") if _remark(path) == _remark(base)]
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


def _remark(path: Path) -> str:
    """Returns what follows the versions in the name of a default database's folder: `_warm`, or nothing."""
    return re.sub(".*_(cuda[^_]+|cann[^_]+|cpu)", "", path.name)


def named_database(folder: Path) -> ComparedDatabase:
    """Returns the database of a folder, named by its implementation. Raises OpAtlasError if it has no CSVs."""
    expect_tables(folder)
    return _database(folder)


def distinct_names(databases: Sequence[ComparedDatabase]) -> list[ComparedDatabase]:
    """Returns databases with different places under the shortest names that tell them apart."""
    of_one_folder = len({each.path for each in databases}) == 1

    deepest = max(len(each.path.parts) for each in databases)

    def names() -> Iterator[list[str]]:
        yield [(each.state or _AS_IT_IS) if of_one_folder and len(databases) > 1 else each.name for each in databases]
        yield [each.name for each in databases]
        yield [each.label for each in databases]
        for depth in range(1, deepest):
            yield ["".join(each.path.parts[-depth:][:1]) for each in databases]
        yield [str(each.path) for each in databases]
        yield [each.place for each in databases]

    distinct = next(found for found in names() if len(set(found)) == len(databases))
    return [replace(each, name=name) for each, name in zip(databases, distinct, strict=True)]


#: The name of the replays in the CSVs beside other states of the same database.
_AS_IT_IS = "now"


def _database(path: Path) -> ComparedDatabase:
    name, version = implementation_of(path)
    if name:
        return ComparedDatabase(name, path, version)
    return ComparedDatabase(default_name(device_kind(database_device(path))), path, is_default=True)
