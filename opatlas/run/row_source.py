"""Where the rows of a session come from: a database, options that list rows, or messages of collectives."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opatlas.data.database import Database
from opatlas.options import Scope
from opatlas.row.versions import Component, Versions

#: The cells of rows, by kernel type.
Rows = Mapping[str, Sequence[Mapping[str, str]]]


@dataclass(frozen=True)
class RowSource:
    """The rows of a session, and what follows from where they come from.

    A source registers itself as an entry point (`extensions.ROW_SOURCES`) under the name of its option: a function of
    pytest's options and the devices of the session, which returns a RowSource and raises OpAtlasError.

    Attributes:
        options: the options of pytest, with the grid that collectives use; they choose the group of a row.
        naming: returns the software whose versions name a database, by the kind of the device.
        default_database: returns the folder of the CSVs by device and versions. Raises OpAtlasError if one of these is
            unknown.
        scope: the kind of session.
        unit, verb: the noun for a row, and the verb for what happens to it.
        rows: returns the rows that options list, given a database that may have them, and notes; None: the rows of
            the database. Raises OpAtlasError.
        starter: fills a database without rows, and returns the number of rows; None: it stays empty.
        starter_unlisted: why --co cannot list the starter of an empty database; "": it can.
        is_listed: whether the rows are written into a database that is made for them.
        counts_missing: whether rows without a function of an implementation are run, with a status that says so.
        subfolder: the folder of this machine in the database: all nodes of a group may see the same disk.
        ops: returns the kernel types to run, from the names of --ops; empty: all.
        subjects: what a row is about and its cells do not hold (`Job.subject`), by kernel type.
        find: finds the candidates for these among the files of a folder (`read_directory`).
        scores: returns figures for the end of a session, given the implementations and their databases.
        notes: lines that tell the user what was chosen.
    """

    options: argparse.Namespace
    naming: Callable[[str], Sequence[Component]]
    default_database: Callable[[str, Versions], Path]
    scope: Scope = Scope.KERNELS
    unit: str = "row"
    verb: str = "replay"
    rows: Callable[[Database], tuple[Rows, Sequence[str]]] | None = None
    starter: Callable[[Database], int] | None = None
    starter_unlisted: str = ""
    is_listed: bool = False
    counts_missing: bool = False
    subfolder: str = ""
    ops: Callable[[Sequence[str]], frozenset[str]] = frozenset
    subjects: Mapping[str, Any] = field(default_factory=dict)
    find: Callable[..., Any] | None = None
    scores: Callable[[Sequence[tuple[Any, Path]]], list[Any]] = lambda targets: []
    notes: Sequence[str] = ()

    @property
    def needs_database(self) -> bool:
        """Whether the rows are those of a database, which must exist where it is named."""
        return not self.is_listed and self.scope is not Scope.COLLECTIVES
