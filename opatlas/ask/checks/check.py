"""Checks, findings, and the checked database: tables, manifests of runs, peaks of the device."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from opatlas.capture.cases import Cases, pool_cases
from opatlas.data.csv_files import read_table
from opatlas.data.database import Database
from opatlas.data.ingests import read_ingests
from opatlas.data.manifest import Manifest
from opatlas.data.origin import Provenance
from opatlas.errors import OpAtlasError, TableError
from opatlas.row.roofline import PEAKS, Peak
from opatlas.row.table import FIRST_LINE, RowTable


@dataclass(frozen=True)
class Finding:
    """A row or a run that fails a check.

    Attributes:
        file: the CSV, or the file in `runs/`.
        line: the line of the row in the file, the header is line 1; None if the finding concerns no row.
        kernel_type: "" if the finding concerns no row.
        row: the row's input shapes or message, or the run id.
        value: the cell or number, such as `62.42 us`.
        reason: what is wrong with the value, and the numbers it was compared with.
        weight: the larger, the worse; comparable within one check.
    """

    file: str
    line: int | None
    kernel_type: str
    row: str
    value: str
    reason: str
    weight: float = 1.0

    @property
    def place(self) -> str:
        """`MatMulV2.csv:457`."""
        name = self.file.rpartition("/")[2]
        return name if self.line is None else f"{name}:{self.line}"


def finding(table: RowTable, index: int, value: str, reason: str, weight: float = 1.0) -> Finding:
    """Returns a finding of the row at a position, from 0."""
    line = index + FIRST_LINE
    return Finding(str(table.path), line, table.kernel_type, table.titles[index], value, reason, float(weight))


class CheckedDatabase:
    """A database, and what its rows are compared with.

    Attributes:
        database: the folder.
        kernel_types: the types whose CSV can be read, collectives included.
        unreadable: the errors of the other CSVs, by kernel type.
        replayed_types: the kernel types that have a replay.
    """

    def __init__(self, path: Path, *, replayed_types: Collection[str] = frozenset()) -> None:
        """Reads all CSVs. Raises OpAtlasError: a folder of the database is a link."""
        self.database = Database(path)
        self.replayed_types = replayed_types
        self._tables: dict[str, RowTable] = {}
        self.unreadable: dict[str, TableError] = {}
        for file in sorted(path.glob("[!.]*.csv")):
            try:
                self._tables[file.stem] = RowTable(file.stem, file, read_table(file, file.stem))
            except TableError as error:
                self.unreadable[file.stem] = error
        self.kernel_types = list(self._tables)

    @property
    def path(self) -> Path:
        """The folder."""
        return self.database.path

    @property
    def rows(self) -> int:
        """The number of rows of all kernel types."""
        return sum(map(len, self._tables.values()))

    def table(self, kernel_type: str) -> RowTable:
        """Returns the rows of one of `kernel_types`."""
        return self._tables[kernel_type]

    def tables(self) -> Iterator[RowTable]:
        """Yields the table of each kernel type."""
        yield from self._tables.values()

    @cached_property
    def rows_by_run(self) -> Counter[str]:
        """The number of replayed durations by run id; "" counts rows without a run id."""
        rows: Counter[str] = Counter()
        for table in self.tables():
            run_ids = table.replayed.run_id
            rows.update(run_ids[index].strip() for index in np.flatnonzero(table.replayed.known).tolist())
        return rows

    @cached_property
    def provenance(self) -> Provenance:
        """The device and software of the durations."""
        return Provenance(self.database)

    @property
    def manifests(self) -> Mapping[str, Manifest]:
        """The readable manifests of runs, by run id."""
        return self.provenance.manifests

    @cached_property
    def _pooled(self) -> tuple[Mapping[str, Cases], list[str]]:
        try:
            return pool_cases(read_ingests(self.database)), []
        except OpAtlasError as error:
            return {}, [str(error)]

    @property
    def pooled(self) -> Mapping[str, Cases]:
        """The captured launches that ingests keep, by kernel type; empty if they cannot be read."""
        return self._pooled[0]

    @property
    def ingests(self) -> frozenset[str]:
        """The run ids of the ingests whose manifest can be read."""
        return frozenset(ingest.manifest.run_id for ingest in self.provenance.ingests)

    @property
    def problems(self) -> Sequence[str]:
        """A sentence for each file in `runs/` that cannot be read. Raises OpAtlasError as `Provenance.problems`."""
        return list(dict.fromkeys([*self.provenance.problems, *self._pooled[1]]))

    @cached_property
    def device(self) -> str:
        """The device of the rows; "" if it is unknown, or there are several."""
        return self.provenance.device

    @cached_property
    def peak(self) -> Peak | None:
        """The peaks in the data sheet of the device; None if unknown."""
        return PEAKS.get(self.device)


#: The kernel type of a check that looks at the whole database.
WHOLE_DATABASE = "database"


@dataclass(frozen=True)
class Check:
    """One data test.

    Attributes:
        name: the name in test ids, in known_findings.yaml and in JSON.
        about: what the findings are: "rows far above both neighbours".
        remedy: what a user can do about a finding.
        check_table: finds rows of one kernel type; None for a check of the whole database.
        check_database: finds rows or runs of the whole database; None for a check of each kernel type.
        advisory: whether findings fail only with --strict.
        why_skipped: says why the check does not apply to a database; "" if it applies.
    """

    name: str
    about: str
    remedy: str
    check_table: Callable[[CheckedDatabase, RowTable], Sequence[Finding]] | None = None
    check_database: Callable[[CheckedDatabase], Sequence[Finding]] | None = None
    advisory: bool = False
    why_skipped: Callable[[CheckedDatabase], str] = lambda database: ""

    def find(self, database: CheckedDatabase, kernel_type: str) -> list[Finding]:
        """Returns the findings of a kernel type, or of WHOLE_DATABASE, the worst first. Raises OpAtlasError."""
        if self.check_database is not None:
            found = self.check_database(database)
        else:
            assert self.check_table is not None
            found = self.check_table(database, database.table(kernel_type))
        return sorted(found, key=lambda finding: -finding.weight)
