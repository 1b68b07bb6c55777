"""The cases of `opatlas check`: pytest collects a case for each check and kernel type."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from opatlas.ask.checks import CHECKS
from opatlas.ask.checks.check import Check, CheckedDatabase, CheckResults, Finding, read_known
from opatlas.data.database import expect_tables
from opatlas.run.registry import replays_of_bench
from opatlas.text import pluralize, printable

#: The file that pytest is told to collect: this one. `CasesPlugin` makes the cases.
CASES = Path(__file__)
_INI = Path(__file__).with_name("check.ini")
#: The findings of a case that JUnit shows, the worst ones.
_SHOWN = 5


def run_checks(folder: Path, for_pytest: Sequence[str]) -> tuple[int, CheckResults]:
    """Runs the checks of a database as cases of pytest, and returns pytest's exit status, and the results.

    Args:
        for_pytest: options of pytest, such as -k.

    Raises:
        OpAtlasError: the folder is no database, or its known findings cannot be read.
    """
    expect_tables(folder)
    database = CheckedDatabase(folder, replayed_types=frozenset(replays_of_bench()))
    results = CheckResults(database, read_known(folder, CHECKS), CHECKS)
    # The working folder gives neither settings nor code: no rootdir, no conftest.py, no pytest.ini.
    # PYTEST_ADDOPTS holds options of replays, and pytest alone does not know most of them.
    os.environ.pop("PYTEST_ADDOPTS", None)
    settings = ["-c", str(_INI), f"--rootdir={os.getcwd()}", "--noconftest"]
    sys.stdout.flush()
    return int(pytest.main([*settings, *for_pytest, str(CASES)], plugins=[CasesPlugin(results)])), results


class CaseFindings(Exception):
    """Findings that fail their case."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = findings
        super().__init__(pluralize(len(findings), "finding"))


class CasesPlugin:
    """Collects the cases."""

    def __init__(self, results: CheckResults) -> None:
        self._results = results

    def pytest_configure(self, config: pytest.Config) -> None:
        """Reads --strict. Raises pytest.UsageError for arguments that pytest would collect as other tests."""
        self._results.strict = bool(config.option.strict)
        if others := [argument for argument in config.args if argument != str(CASES)]:
            raise pytest.UsageError(f"opatlas check takes a database and -k: leave out {printable(', '.join(others))}")

    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
        if file_path != CASES:
            return None
        return _Checks.from_parent(parent, path=file_path, results=self._results)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._results.strict and session.exitstatus == pytest.ExitCode.OK and self._results.unused_entries():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


class _Checks(pytest.File):
    """All checks, each for each kernel type."""

    def __init__(self, *, results: CheckResults, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._results = results

    def collect(self) -> Iterator[CheckCase]:
        for check in CHECKS:
            for kernel_type in self._results.cases_of(check):
                name = printable(kernel_type)
                nodeid = f"{check.name}::{name}"
                yield CheckCase.from_parent(
                    self, name=name, nodeid=nodeid, results=self._results, check=check, kernel_type=kernel_type
                )


class CheckCase(pytest.Item):
    """One check of one kernel type."""

    def __init__(self, *, results: CheckResults, check: Check, kernel_type: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # `-k monotone` asks for the cases of a check.
        self.extra_keyword_matches.add(check.name)
        self._results = results
        self._check = check
        self._kernel_type = kernel_type

    def runtest(self) -> None:
        check, results = self._check, self._results
        if why := results.why_skipped(check):
            pytest.skip(why)
        found, fails = results.run(check, self._kernel_type)
        if fails:
            raise CaseFindings(fails)
        if found.known:
            finding, entry = found.known[0]
            known = pluralize(len(found.known), "known finding")
            pytest.xfail(printable(f"{known}, such as {finding.row}: {entry.reason}"))
        if found.new:
            pytest.xfail(f"{pluralize(len(found.new), 'finding')} that tell but do not fail: {check.about}")

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
        lines = [f"{each.place}  {each.row}  {each.value}  {each.reason}" for each in findings[:_SHOWN]]
        return printable("\n".join([f"{self._check.about}: {len(findings):,}", *lines]), keeps="\n")
