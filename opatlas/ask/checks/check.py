"""What a check is, the database that it looks at, what checks found, and which findings are known.

A known finding, of which known_findings.yaml in the folder of the database has the reason, is reported and does not
fail. An entry there that matches no finding is reported too.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np

from opatlas.data.csv_files import read_table
from opatlas.data.database import Database
from opatlas.data.origin import Provenance
from opatlas.errors import OpAtlasError, TableError
from opatlas.files import read_safely
from opatlas.row.communication import is_communication
from opatlas.row.roofline import PEAKS, Peak
from opatlas.row.table import FIRST_LINE, RowTable
from opatlas.text import exception_line, suggest
from opatlas.yaml_file import YamlError, parse_yaml

#: The kernel type of a check that looks at the whole database.
WHOLE_DATABASE = "database"
KNOWN_FINDINGS = "known_findings.yaml"
_KINDS = {False: "kernels", True: "messages"}
#: The pattern that every kernel type and every row matches.
ANY = "*"
_LARGEST_BYTES = 4 << 20
_Text = Annotated[str, msgspec.Meta(min_length=1)]


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
        path: the folder.
        tables: the tables that can be read by kernel type, those of collectives included.
        unreadable: the errors of the other CSVs, by kernel type.
        replayed_types: the kernel types that have a replay.
        provenance: the device and software of the durations.
    """

    def __init__(self, path: Path, *, replayed_types: Collection[str] = frozenset()) -> None:
        """Reads all CSVs. Raises OpAtlasError: a folder of the database is a link."""
        self.path = path
        self.replayed_types = replayed_types
        self.provenance = Provenance(Database(path))
        self.tables: dict[str, RowTable] = {}
        self.unreadable: dict[str, TableError] = {}
        for file in sorted(path.glob("[!.]*.csv")):
            try:
                self.tables[file.stem] = RowTable(file.stem, file, read_table(file, file.stem))
            except TableError as error:
                self.unreadable[file.stem] = error

    @property
    def rows(self) -> int:
        """The number of rows of all kernel types."""
        return sum(map(len, self.tables.values()))

    @cached_property
    def rows_by_run(self) -> Counter[str]:
        """The number of replayed durations by run id; "" counts rows without a run id."""
        rows: Counter[str] = Counter()
        for table in self.tables.values():
            run_ids = table.replayed.run_id
            rows.update(run_ids[index].strip() for index in np.flatnonzero(table.replayed.known).tolist())
        return rows

    @property
    def device(self) -> str:
        """The device of the rows; "" if it is unknown, or there are several."""
        return self.provenance.device

    @property
    def peak(self) -> Peak | None:
        """The peaks in the data sheet of the device; None if unknown."""
        return PEAKS.get(self.device)


@dataclass(frozen=True)
class Check:
    """One data test: of the rows of each kernel type, or of the whole database.

    Attributes:
        function: finds rows or runs, by the database and the table of a kernel type, or by the database alone. Its
            name is that of the check, and its first line says what it finds.
        remedy: what a user can do about a finding.
        of: what it looks at: the whole database at once, or the rows of each kernel type, of kernels, of messages.
        advisory: whether findings fail only with --strict.
        why_skipped: says why the check does not apply to a database; "" if it applies.
    """

    function: Callable[..., Iterable[Finding]]
    remedy: str
    of: Literal["database", "rows", "kernels", "messages"] = "rows"
    advisory: bool = False
    why_skipped: Callable[[CheckedDatabase], str] = lambda database: ""

    @property
    def name(self) -> str:
        """The name in test ids, in known_findings.yaml and in JSON: `below-roofline`."""
        return self.function.__name__.replace("_", "-")

    @property
    def about(self) -> str:
        """What the findings are: "rows that take clearly longer than both neighbours in M"."""
        return (self.function.__doc__ or "").partition("\n")[0].removeprefix("Finds ").rstrip(".")

    def cases(self, database: CheckedDatabase) -> list[str]:
        """Returns the kernel types that it looks at; WHOLE_DATABASE alone for the database."""
        if self.of == "database":
            return [WHOLE_DATABASE]
        return [name for name in database.tables if self.of in ("rows", _KINDS[is_communication(name)])]

    def skipped(self, database: CheckedDatabase) -> str:
        """Returns why the check does not apply to a database; "" if it applies."""
        return self.why_skipped(database) if self.cases(database) else f"no {self.of} in the database"

    def find(self, database: CheckedDatabase, kernel_type: str) -> list[Finding]:
        """Returns the findings of a case, the worst first. Raises OpAtlasError."""
        subjects = (database,) if self.of == "database" else (database, database.tables[kernel_type])
        return sorted(self.function(*subjects), key=lambda each: -each.weight)


class KnownFinding(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of known_findings.yaml.

    Attributes:
        checks: names of the checks.
        kernel_type, row: patterns with `*` and `?` for the kernel type and the row of a finding.
        most: how many findings of each kernel type are known, the least severe ones; None for all.
        reason: the cause of the numbers.
        date: the day of the examination.
        number: of the entry in the file, from 1.
    """

    checks: Annotated[list[_Text], msgspec.Meta(min_length=1)]
    reason: _Text
    date: datetime.date
    kernel_type: _Text = ANY
    row: _Text = ANY
    most: Annotated[int, msgspec.Meta(ge=1)] | None = None
    number: int = 0

    @property
    def place(self) -> str:
        """File and number of the entry."""
        return f"{KNOWN_FINDINGS}, entry {self.number}"

    def covers(self, check: Check, found: Finding) -> bool:
        """Returns whether the entry matches a finding of a check."""
        cells = (found.kernel_type, self.kernel_type), (found.row, self.row)
        return check.name in self.checks and all(fnmatchcase(*each) for each in cells)


class SortedFindings(NamedTuple):
    """The findings of a case: new ones, the worst first, and known ones, each with its entry."""

    new: list[Finding]
    known: list[tuple[Finding, KnownFinding]]


def split_findings(check: Check, findings: Iterable[Finding], entries: Sequence[KnownFinding]) -> SortedFindings:
    """Splits the findings of one check and kernel type, the worst first; the first matching entry counts."""
    of_entry: dict[int, list[Finding]] = {}
    for each in findings:
        number = next((i for i, entry in enumerate(entries) if entry.covers(check, each)), -1)
        of_entry.setdefault(number, []).append(each)
    sorted_out = SortedFindings(of_entry.pop(-1, []), [])
    for number, covered in of_entry.items():
        entry = entries[number]
        extra = covered[: -entry.most] if entry.most is not None else []
        told = f"{entry.place} allows {entry.most} of {len(covered)}"
        sorted_out.new.extend(replace(each, reason=f"{each.reason}; {told}") for each in extra)
        sorted_out.known.extend((each, entry) for each in covered[len(extra) :])
    sorted_out.new.sort(key=lambda each: -each.weight)
    return sorted_out


def read_known(folder: Path, checks: Sequence[Check]) -> list[KnownFinding]:
    """Reads the entries of a database; an empty list if there is no file.

    Raises:
        OpAtlasError: the file cannot be read, links out of the folder, or is not a list of known findings.
    """
    path = folder / KNOWN_FINDINGS
    try:
        content = parse_yaml(read_safely(path, _LARGEST_BYTES), strict=True)
    except FileNotFoundError:
        return []
    except (OSError, YamlError) as error:
        raise OpAtlasError(f"{path}: cannot be read ({error}): correct it, or remove it") from None
    if not isinstance(content, list | None):
        raise OpAtlasError(f"{path}: not a list of known findings: begin each with `- checks: [NAME]`")
    names = [check.name for check in checks]
    entries = []
    for number, each in enumerate(content or (), start=1):
        try:
            entry = msgspec.convert(each, KnownFinding)
        except msgspec.ValidationError as error:
            raise OpAtlasError(f"{path}, entry {number}: {error}: write it as in docs/compare.md") from None
        if unknown := [name for name in entry.checks if name not in names]:
            like = suggest(unknown[0], names)
            raise OpAtlasError(
                f"{path}, entry {number}: no check {unknown[0]!r}{like}: give some of {', '.join(names)}"
            )
        entries.append(msgspec.structs.replace(entry, number=number))
    return entries


@dataclass
class CheckTally:
    """The results of the cases of a check: one for each kernel type, or one for the database.

    Attributes:
        cases: the number of cases that were run.
        new, known: the findings.
        failing: of these, the ones that fail their case, by case.
        skipped: why the check does not apply to this database.
    """

    check: Check
    cases: int = 0
    new: list[Finding] = field(default_factory=list)
    known: list[tuple[Finding, KnownFinding]] = field(default_factory=list)
    failing: list[Sequence[Finding]] = field(default_factory=list)
    skipped: str = ""


class CheckResults:
    """Runs cases, and keeps their findings.

    Attributes:
        database: what is checked.
        entries: those of its known_findings.yaml.
        strict: whether known and advisory findings fail.
        tallies: the results by the name of the check.
        problems: cases that could not be run.
    """

    def __init__(self, database: CheckedDatabase, entries: Sequence[KnownFinding], checks: Iterable[Check]) -> None:
        self.database, self.entries = database, entries
        self.strict = False
        self.tallies = {each.name: CheckTally(each) for each in checks}
        self.problems: list[str] = []
        self._ran: set[tuple[str, str]] = set()

    def cases_of(self, check: Check) -> Sequence[str]:
        """Returns the names of a check's cases; one for a check that does not apply."""
        return [WHOLE_DATABASE] if check.skipped(self.database) else check.cases(self.database)

    def why_skipped(self, check: Check) -> str:
        """Returns why a check does not apply to the database; "" if it applies."""
        self.tallies[check.name].skipped = check.skipped(self.database)
        return self.tallies[check.name].skipped

    def run(self, check: Check, kernel_type: str) -> tuple[SortedFindings, list[Finding]]:
        """Runs a case; returns its findings, and those that fail it. Raises what the check raises."""
        tally = self.tallies[check.name]
        try:
            found = split_findings(check, check.find(self.database, kernel_type), self.entries)
        except Exception as error:
            self.problems.append(f"{check.name} of {kernel_type}: {exception_line(error)}")
            raise
        tally.cases += 1
        tally.new += found.new
        tally.known += found.known
        self._ran.add((check.name, kernel_type))
        new = () if check.advisory and not self.strict else found.new
        fails = [*new, *(each for each, _ in found.known if self.strict)]
        tally.failing.append(fails)
        return found, fails

    def unused_entries(self) -> list[KnownFinding]:
        """Returns the entries that no finding matches, of those whose cases were all run."""
        matched = {id(entry) for tally in self.tallies.values() for _, entry in tally.known}
        return [entry for entry in self.entries if id(entry) not in matched and self._all_ran(entry)]

    def _all_ran(self, entry: KnownFinding) -> bool:
        checks = [self.tallies[name].check for name in entry.checks]
        return all((check.name, kind) in self._ran for check in checks for kind in self.cases_of(check))
