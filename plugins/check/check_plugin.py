"""The cases of `opatlas check`: a collector for each check, and below it an item for each kernel type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter

from opatlas.checks.catalog import CHECKS
from opatlas.checks.check import WHOLE_DATABASE, Check, CheckedDatabase, Finding
from opatlas.checks.known import KnownFinding, sort_out
from opatlas.errors import OpAtlasError
from opatlas.text import counted, printable, shown

#: The argument that pytest collects. It holds no cases itself: those are made here.
CASES = Path(__file__)
_SHOWN = 5


@dataclass
class CheckTally:
    """What came of the cases of a check.

    Attributes:
        cases: that were run.
        new, known: findings.
        skipped: why the check cannot look at this database.
    """

    check: Check
    cases: int = 0
    new: list[Finding] = field(default_factory=list)
    known: list[tuple[Finding, KnownFinding]] = field(default_factory=list)
    skipped: str = ""


class _FindingsRepr(TerminalRepr):
    """What a failed case prints.

    Where `CI` is set, pytest's short summary repeats the whole of a failure that is plain text: here the first line.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self.reprcrash = ReprFileLocation(str(CASES), 0, lines[0])

    def toterminal(self, tw: TerminalWriter) -> None:
        for line in self._lines:
            tw.line(line)


class Found(Exception):
    """Findings that fail their case."""

    def __init__(self, findings: Sequence[Finding], known: Sequence[Finding]) -> None:
        self.findings = findings
        self.known = known
        super().__init__(counted(len(findings), "finding"))


class Cases:
    """Collects the cases, and keeps what they find.

    Attributes:
        database: what is checked.
        known: the entries of its known_findings.yaml.
        strict: whether known and advisory findings fail.
        show_all: whether each finding is listed.
        tallies: by the name of the check, as far as its cases were run.
    """

    def __init__(
        self, database: CheckedDatabase, known: Sequence[KnownFinding], *, strict: bool, show_all: bool
    ) -> None:
        self.database = database
        self.known = known
        self.strict = strict
        self.show_all = show_all
        self.tallies = {check.name: CheckTally(check) for check in CHECKS}
        self._ran: set[tuple[str, str]] = set()

    def pytest_configure(self, config: pytest.Config) -> None:
        """Refuses what pytest would take for further tests. Raises pytest.UsageError."""
        if others := [argument for argument in config.args if argument != str(CASES)]:
            raise pytest.UsageError(
                f"opatlas check takes one database, and -k selects its cases: leave out {printable(', '.join(others))}"
            )

    @pytest.hookimpl(tryfirst=True)
    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        if file_path != CASES:
            return None
        return _Checks.from_parent(parent, path=file_path, cases=self)

    def kernel_types_of(self, check: Check) -> Sequence[str]:
        """Returns the names of a check's cases."""
        of_whole = check.of_database is not None or check.applies(self.database)
        return [WHOLE_DATABASE] if of_whole else self.database.kernel_types

    def look(self, check: Check, kernel_type: str) -> None:
        """Runs a case. Raises Found, or the outcome of pytest that a case without new findings has."""
        tally = self.tallies[check.name]
        tally.skipped = check.applies(self.database)
        if tally.skipped:
            pytest.skip(tally.skipped)
        sorted_out = sort_out(check, check.find(self.database, kernel_type), self.known)
        tally.cases += 1
        tally.new += sorted_out.new
        tally.known += sorted_out.known
        self._ran.add((check.name, kernel_type))
        known = [finding for finding, _ in sorted_out.known]
        fails = [*(() if check.advisory and not self.strict else sorted_out.new), *(known if self.strict else ())]
        if fails:
            raise Found(fails, () if self.strict else known)
        if sorted_out.known:
            finding, entry = sorted_out.known[0]
            pytest.xfail(printable(f"{counted(len(known), 'known finding')}, such as {finding.row}: {entry.reason}"))
        if sorted_out.new:
            pytest.xfail(f"{counted(len(sorted_out.new), 'finding')} that tell but do not fail: {check.about}")

    def covering_nothing(self) -> list[KnownFinding]:
        """Returns the entries that no finding of this session matches, of those whose cases were all run."""
        matched = {id(entry) for tally in self.tallies.values() for _, entry in tally.known}
        return [entry for entry in self.known if id(entry) not in matched and self._all_ran(entry)]

    def _all_ran(self, entry: KnownFinding) -> bool:
        checks = [self.tallies[name].check for name in entry.checks]
        return all(
            (check.name, kernel_type) in self._ran for check in checks for kernel_type in self.kernel_types_of(check)
        )


class _Checks(pytest.File):
    """All checks."""

    def __init__(self, *, cases: Cases, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._cases = cases

    def collect(self) -> Iterator[_CheckCollector]:
        for check in CHECKS:
            yield _CheckCollector.from_parent(self, name=check.name, nodeid=check.name, cases=self._cases, check=check)


class _CheckCollector(pytest.Collector):
    """The cases of one check."""

    def __init__(self, *, cases: Cases, check: Check, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._cases = cases
        self._check = check

    def collect(self) -> Iterator[CheckCase]:
        for kernel_type in self._cases.kernel_types_of(self._check):
            yield CheckCase.from_parent(
                self, name=printable(kernel_type), cases=self._cases, check=self._check, kernel_type=kernel_type
            )


class CheckCase(pytest.Item):
    """One check of one kernel type."""

    def __init__(self, *, cases: Cases, check: Check, kernel_type: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._cases = cases
        self._check = check
        self._kernel_type = kernel_type

    def runtest(self) -> None:
        self._cases.look(self._check, self._kernel_type)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self._check.name}: {self.name}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        if isinstance(excinfo.value, OpAtlasError):
            return shown(str(excinfo.value))
        if not isinstance(excinfo.value, Found):
            return super().repr_failure(excinfo, style)
        return _FindingsRepr([shown(line) for line in self._lines(excinfo.value)])

    def _lines(self, found: Found) -> Iterator[str]:
        findings = found.findings
        yield f"{self._check.about}: {len(findings):,}"
        listed = findings if self._cases.show_all else findings[:_SHOWN]
        for finding in listed:
            yield f"  {finding.place}  {finding.row}  {finding.value}".rstrip()
            yield f"      {finding.reason}"
        if len(findings) > len(listed):
            yield f"  and {len(findings) - len(listed):,} more: --all shows them"
        if found.known:
            yield f"  besides {counted(len(found.known), 'finding')} that known_findings.yaml explains"
        yield f"to do: {self._check.remedy}"
