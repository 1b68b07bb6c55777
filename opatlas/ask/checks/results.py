"""What the checks of a database found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from opatlas.ask.checks import CHECKS
from opatlas.ask.checks.check import WHOLE_DATABASE, Check, CheckedDatabase, Finding
from opatlas.ask.checks.known_findings import KnownFinding, SortedFindings, split_findings
from opatlas.text import exception_line


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
