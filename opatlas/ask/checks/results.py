"""What the checks of a database found, and which findings are known: `known_findings.yaml` in the folder
of a database lists findings and the reason of each.

A known finding is reported and does not fail. An entry that matches no finding is reported too.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from opatlas.ask.checks import CHECKS
from opatlas.ask.checks.check import WHOLE_DATABASE, Check, CheckedDatabase, Finding
from opatlas.errors import OpAtlasError
from opatlas.files import read_safely
from opatlas.text import exception_line, suggest
from opatlas.yaml_file import YamlError, parse_yaml

KNOWN_FINDINGS = "known_findings.yaml"
#: The pattern that every kernel type and every row matches.
ANY = "*"
_LARGEST_BYTES = 4 << 20
_Text = Annotated[str, Meta(min_length=1)]


class KnownFinding(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of the file.

    Attributes:
        checks: names of the checks.
        kernel_type, row: patterns with `*` and `?` for the kernel type and the row of a finding.
        most: how many findings of each kernel type are known, the least severe ones; None for all.
        reason: the cause of the numbers.
        date: the day of the examination.
        number: of the entry in the file, from 1.
    """

    checks: Annotated[list[_Text], Meta(min_length=1)]
    reason: _Text
    date: datetime.date
    kernel_type: _Text = ANY
    row: _Text = ANY
    most: Annotated[int, Meta(ge=1)] | None = None
    number: int = 0

    @property
    def place(self) -> str:
        """File and number of the entry."""
        return f"{KNOWN_FINDINGS}, entry {self.number}"

    def covers(self, check: Check, finding: Finding) -> bool:
        """Returns whether the entry matches a finding of a check."""
        return (
            check.name in self.checks
            and fnmatchcase(finding.kernel_type, self.kernel_type)
            and fnmatchcase(finding.row, self.row)
        )


@dataclass(frozen=True)
class SortedFindings:
    """The findings of a case.

    Attributes:
        new: findings that no entry matches, the worst first.
        known: the other findings, each with its entry.
    """

    new: Sequence[Finding]
    known: Sequence[tuple[Finding, KnownFinding]]


def split_findings(check: Check, findings: Sequence[Finding], entries: Sequence[KnownFinding]) -> SortedFindings:
    """Splits the findings of one check and kernel type into new and known ones; the first matching entry counts."""
    of_entry: dict[int, list[Finding]] = {}
    new: list[Finding] = []
    for finding in findings:
        number = next((i for i, entry in enumerate(entries) if entry.covers(check, finding)), None)
        if number is None:
            new.append(finding)
        else:
            of_entry.setdefault(number, []).append(finding)
    known = []
    for number, covered in of_entry.items():
        entry = entries[number]
        if entry.most is not None and len(covered) > entry.most:
            extra, covered = covered[: -entry.most], covered[-entry.most :]
            told = f"{entry.place} allows {entry.most} of {len(covered) + len(extra)}"
            new += [replace(finding, reason=f"{finding.reason}; {told}") for finding in extra]
        known += [(finding, entry) for finding in covered]
    return SortedFindings(sorted(new, key=lambda finding: -finding.weight), known)


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
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): make it readable, or remove it") from None
    except YamlError as error:
        raise OpAtlasError(f"{path}: not YAML ({error}): correct it") from None
    if not isinstance(content, list | None):
        remedy = "begin each with `- checks: [NAME]` (docs/compare.md)"
        raise OpAtlasError(f"{path}: not a list of known findings: {remedy}")
    names = [check.name for check in checks]
    entries = []
    for number, each in enumerate(content or (), start=1):
        try:
            entry = msgspec.convert(each, KnownFinding)
        except msgspec.ValidationError as error:
            raise OpAtlasError(
                f"{path}, entry {number}: {error}: write checks, kernel_type, row, most, reason and date as in "
                f"docs/compare.md"
            ) from None
        for name in entry.checks:
            if name not in names:
                raise OpAtlasError(
                    f"{path}, entry {number}: there is no check {name!r}{suggest(name, names)}: give some of "
                    f"{', '.join(names)}"
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


@dataclass
class CheckResults:
    """Runs cases, and keeps their findings.

    Attributes:
        database: what is checked.
        entries: those of its known_findings.yaml.
        strict: whether known and advisory findings fail.
        show_all: whether a user wants to see each finding.
        tallies: the results by the name of the check.
        problems: cases that could not be run.
    """

    database: CheckedDatabase
    entries: Sequence[KnownFinding]
    strict: bool = False
    show_all: bool = False
    tallies: dict[str, CheckTally] = field(default_factory=lambda: {each.name: CheckTally(each) for each in CHECKS})
    problems: list[str] = field(default_factory=list)
    _ran: set[tuple[str, str]] = field(default_factory=set)

    def kernel_types_of(self, check: Check) -> Sequence[str]:
        """Returns the names of a check's cases."""
        of_whole = check.check_database is not None or check.why_skipped(self.database)
        return [WHOLE_DATABASE] if of_whole else self.database.kernel_types

    def why_skipped(self, check: Check) -> str:
        """Returns why a check does not apply to the database; "" if it applies."""
        self.tallies[check.name].skipped = check.why_skipped(self.database)
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
        fails = [*new, *(finding for finding, _ in found.known if self.strict)]
        tally.failing.append(fails)
        return found, fails

    def unused_entries(self) -> list[KnownFinding]:
        """Returns the entries that no finding matches, of those whose cases were all run."""
        matched = {id(entry) for tally in self.tallies.values() for _, entry in tally.known}
        return [entry for entry in self.entries if id(entry) not in matched and self._all_ran(entry)]

    def _all_ran(self, entry: KnownFinding) -> bool:
        checks = [self.tallies[name].check for name in entry.checks]
        return all(
            (check.name, kernel_type) in self._ran for check in checks for kernel_type in self.kernel_types_of(check)
        )
