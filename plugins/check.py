"""The cases of `opatlas check`: pytest collects a case for each check and kernel type."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from opatlas.checks import CHECKS
from opatlas.checks.check import WHOLE_DATABASE, Check, CheckedDatabase, Finding
from opatlas.checks.known_findings import KnownFinding, read_known, split_findings
from opatlas.engine.kernel_facts import replays_of_bench
from opatlas.report.plots.timed_rows import expect_tables
from opatlas.text import exception_line, pluralize, printable

from .run_manifest import present_code

#: The file that pytest is told to collect: this one. `Cases` makes the cases.
CASES = Path(__file__)
_INI = Path(__file__).with_name("check.ini")
#: The findings of a case that are shown, the worst ones.
SHOWN = 5
#: The verbosity that shows each finding.
_SHOWS_ALL = 2


def run_checks(folder: Path, for_pytest: Sequence[str]) -> tuple[int, Cases]:
    """Runs the checks of a database as cases of pytest, and returns pytest's exit status, and the results.

    Args:
        for_pytest: options of pytest, such as -k.

    Raises:
        OpAtlasError: the folder is no database, or its known findings cannot be read.
    """
    expect_tables(folder)
    database = CheckedDatabase(folder, code=present_code(), replayed_types=frozenset(replays_of_bench()))
    cases = Cases(database, read_known(folder, CHECKS))
    # The working folder gives neither settings nor code: no rootdir, no conftest.py, no pytest.ini.
    # PYTEST_ADDOPTS holds options of replays, and pytest alone does not know most of them.
    os.environ.pop("PYTEST_ADDOPTS", None)
    settings = ["-c", str(_INI), f"--rootdir={os.getcwd()}", "--noconftest"]
    sys.stdout.flush()
    return int(pytest.main([*settings, *for_pytest, str(CASES)], plugins=[cases])), cases


@dataclass
class CheckTally:
    """The results of the cases of a check.

    Attributes:
        cases: the number of cases that were run.
        new, known: the findings.
        failing: of these, the ones that failed their case.
        skipped: why the check does not apply to this database.
    """

    check: Check
    cases: int = 0
    new: list[Finding] = field(default_factory=list)
    known: list[tuple[Finding, KnownFinding]] = field(default_factory=list)
    failing: list[Finding] = field(default_factory=list)
    skipped: str = ""


class CaseFindings(Exception):
    """Findings that fail their case."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = findings
        super().__init__(pluralize(len(findings), "finding"))


class Cases:
    """Collects the cases, and stores their findings.

    Attributes:
        database: what is checked.
        known: the entries of its known_findings.yaml.
        strict: whether known and advisory findings fail (--strict).
        show_all: whether each finding is shown (-vv).
        tallies: results of the cases that ran, by the name of the check.
        problems: cases that could not be run.
    """

    def __init__(self, database: CheckedDatabase, known: Sequence[KnownFinding]) -> None:
        self.database = database
        self.known = known
        self.strict = self.show_all = False
        self.tallies = {check.name: CheckTally(check) for check in CHECKS}
        self.problems: list[str] = []
        self._ran: set[tuple[str, str]] = set()

    def pytest_configure(self, config: pytest.Config) -> None:
        """Reads --strict and -vv. Raises pytest.UsageError for arguments that pytest would collect as other tests."""
        self.strict, self.show_all = bool(config.option.strict), config.get_verbosity() >= _SHOWS_ALL
        if others := [argument for argument in config.args if argument != str(CASES)]:
            raise pytest.UsageError(
                f"opatlas check takes one database, and -k selects its cases: leave out {printable(', '.join(others))}"
            )

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        if file_path != CASES:
            return None
        return _Checks.from_parent(parent, path=file_path, cases=self)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.strict and session.exitstatus == pytest.ExitCode.OK and self.unused_entries():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def kernel_types_of(self, check: Check) -> Sequence[str]:
        """Returns the names of a check's cases."""
        of_whole = check.check_database is not None or check.why_skipped(self.database)
        return [WHOLE_DATABASE] if of_whole else self.database.kernel_types

    def look(self, check: Check, kernel_type: str) -> None:
        """Runs a case. Raises CaseFindings, or pytest's skip or xfail."""
        tally = self.tallies[check.name]
        tally.skipped = check.why_skipped(self.database)
        if tally.skipped:
            pytest.skip(tally.skipped)
        try:
            found = split_findings(check, check.find(self.database, kernel_type), self.known)
        except Exception as error:
            self.problems.append(f"{check.name} of {kernel_type}: {exception_line(error)}")
            raise
        tally.cases += 1
        tally.new += found.new
        tally.known += found.known
        self._ran.add((check.name, kernel_type))
        known = [finding for finding, _ in found.known]
        fails = [*(() if check.advisory and not self.strict else found.new), *(known if self.strict else ())]
        tally.failing += fails
        if fails:
            raise CaseFindings(fails)
        if found.known:
            finding, entry = found.known[0]
            pytest.xfail(printable(f"{pluralize(len(known), 'known finding')}, such as {finding.row}: {entry.reason}"))
        if found.new:
            pytest.xfail(f"{pluralize(len(found.new), 'finding')} that tell but do not fail: {check.about}")

    def unused_entries(self) -> list[KnownFinding]:
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

    @property
    def location(self) -> tuple[str, int | None, str]:
        """The check stands for a file in pytest's lines."""
        return self._check.name, None, f"{self._check.name}: {self.name}"

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return self.path, None, f"{self._check.name}: {self.name}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Returns the text of JUnit; the command shows the findings of all cases in a table."""
        if not isinstance(excinfo.value, CaseFindings):
            return super().repr_failure(excinfo, style)
        findings = excinfo.value.findings
        lines = [f"{each.place}  {each.row}  {each.value}  {each.reason}" for each in findings[:SHOWN]]
        return printable("\n".join([f"{self._check.about}: {len(findings):,}", *lines]), keeps="\n")
