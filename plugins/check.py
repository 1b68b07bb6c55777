"""The cases of `opatlas check`: pytest collects a case for each check and kernel type, and prints a report."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from opatlas.checks import CHECKS
from opatlas.checks.check import WHOLE_DATABASE, Check, CheckedDatabase, Finding
from opatlas.checks.known_findings import ANY, KNOWN_FINDINGS, KnownFinding, read_known, split_findings
from opatlas.checks.run_checks import compared_rows
from opatlas.engine.kernel_facts import replays_of_bench
from opatlas.errors import OpAtlasError
from opatlas.report.plots.timed_rows import expect_tables
from opatlas.text import COLUMNS, pluralize, printable, printable_lines, shorten, wrap

from .pytest_internals import ReprFileLocation, TerminalRepr, TerminalWriter, fitted
from .run_manifest import present_code

#: The file that pytest is told to collect: this one. `Cases` makes the cases.
CASES = Path(__file__)
_INI = Path(__file__).with_name("check.ini")
_SHOWN = 5
#: The verbosity that lists each finding.
_SHOWS_ALL = 2
_INDENT = 4
_ABOUT = "what it looks for"


def run_checks(
    folder: Path,
    against: Path | None,
    *,
    for_pytest: Sequence[str],
) -> tuple[int, dict[str, object]]:
    """Runs the checks of a database as cases of pytest.

    Returns:
        pytest's exit status, and all findings for JSON: empty if pytest refused its options or was interrupted.

    Args:
        against: another database, whose rows of the same cases are compared.
        for_pytest: options of pytest, such as -k.

    Raises:
        OpAtlasError: a folder is no database, its known findings cannot be read, or no row of both can be compared.
    """
    other = _opened(against, None) if against is not None else None
    database = _opened(folder, other)
    if other is not None and not compared_rows(database, other):
        raise OpAtlasError(
            f"--against {against}: no row of it compares with a row of {folder}: name a database of the same cases, "
            f"device, versions, cache state and instrument"
        )
    cases = Cases(database, read_known(folder, CHECKS))
    report = CheckReport(cases)
    # The working folder gives neither settings nor code: no rootdir, no conftest.py, no pytest.ini.
    # PYTEST_ADDOPTS holds options of replays, and pytest alone does not know most of them.
    os.environ.pop("PYTEST_ADDOPTS", None)
    settings = ["-c", str(_INI), f"--rootdir={os.getcwd()}", "--noconftest"]
    sys.stdout.flush()
    status = int(pytest.main([*settings, *for_pytest, str(CASES)], plugins=[cases, report]))
    return status, report.content


def _opened(folder: Path, against: CheckedDatabase | None) -> CheckedDatabase:
    expect_tables(folder)
    return CheckedDatabase(folder, code=present_code(), against=against, replayed_types=frozenset(replays_of_bench()))


@dataclass
class CheckTally:
    """The results of the cases of a check.

    Attributes:
        cases: the number of cases that were run.
        new, known: the findings.
        skipped: why the check does not apply to this database.
    """

    check: Check
    cases: int = 0
    new: list[Finding] = field(default_factory=list)
    known: list[tuple[Finding, KnownFinding]] = field(default_factory=list)
    skipped: str = ""


class _FindingsRepr(TerminalRepr):
    """The text of a failed case.

    Where `CI` is set, pytest's short summary repeats a plain text in full. Of this class it repeats the first line.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        self._lines = lines
        self.reprcrash = ReprFileLocation(str(CASES), 0, lines[0])

    def toterminal(self, tw: TerminalWriter) -> None:
        for line in self._lines:
            tw.line(line)


class CaseFindings(Exception):
    """Findings that fail their case."""

    def __init__(self, findings: Sequence[Finding], known: Sequence[Finding]) -> None:
        self.findings = findings
        self.known = known
        super().__init__(pluralize(len(findings), "finding"))


class Cases:
    """Collects the cases, and stores their findings.

    Attributes:
        database: what is checked.
        known: the entries of its known_findings.yaml.
        strict: whether known and advisory findings fail (--strict).
        show_all: whether each finding is listed (-vv).
        tallies: results of the cases that ran, by the name of the check.
    """

    def __init__(self, database: CheckedDatabase, known: Sequence[KnownFinding]) -> None:
        self.database = database
        self.known = known
        self.strict = self.show_all = False
        self.tallies = {check.name: CheckTally(check) for check in CHECKS}
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
        sorted_out = split_findings(check, check.find(self.database, kernel_type), self.known)
        tally.cases += 1
        tally.new += sorted_out.new
        tally.known += sorted_out.known
        self._ran.add((check.name, kernel_type))
        known = [finding for finding, _ in sorted_out.known]
        fails = [*(() if check.advisory and not self.strict else sorted_out.new), *(known if self.strict else ())]
        if fails:
            raise CaseFindings(fails, () if self.strict else known)
        if sorted_out.known:
            finding, entry = sorted_out.known[0]
            pytest.xfail(printable(f"{pluralize(len(known), 'known finding')}, such as {finding.row}: {entry.reason}"))
        if sorted_out.new:
            pytest.xfail(f"{pluralize(len(sorted_out.new), 'finding')} that tell but do not fail: {check.about}")

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
        if isinstance(excinfo.value, (OpAtlasError, pytest.xfail.Exception)):
            return printable_lines(str(excinfo.value))
        if not isinstance(excinfo.value, CaseFindings):
            return super().repr_failure(excinfo, style)
        return _FindingsRepr([fitted(self.config, line) for line in self._lines(excinfo.value)])

    def _lines(self, found: CaseFindings) -> Iterator[str]:
        findings = found.findings
        yield f"{self._check.about}: {len(findings):,}"
        listed = findings if self._cases.show_all else findings[:_SHOWN]
        for finding in listed:
            yield f"  {finding.place}  {finding.row}  {finding.value}".rstrip()
            yield f"      {finding.reason}"
        if len(findings) > len(listed):
            yield f"  and {len(findings) - len(listed):,} more: -vv shows them"
        if found.known:
            yield f"  besides {pluralize(len(found.known), 'finding')} that known_findings.yaml explains"
        yield f"to do: {self._check.remedy}"


class CheckReport:
    """Prints the findings of the cases.

    Attributes:
        content: all findings for JSON, once the cases have run.
    """

    def __init__(self, cases: Cases) -> None:
        self._cases = cases
        self.content: dict[str, object] = {}

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and terminal.showheader:
            database = self._cases.database
            device = f" of {database.device}" if database.device else ""
            types = pluralize(len(database.kernel_types), "kernel type")
            terminal.write_line(
                fitted(session.config, f"{database.path}: {pluralize(database.rows, 'row')} of {types}{device}")
            )

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        stale = self._cases.unused_entries()
        if stale and self._cases.strict and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            self.content = self._json(int(session.exitstatus), stale)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_sep("=", "checks")
        header, *rows = self._table()
        for line in (header, *rows):
            terminalreporter.write_line(fitted(terminalreporter.config, line, hang=header.index(_ABOUT)))
        for line in self._known_lines():
            terminalreporter.write_line(fitted(terminalreporter.config, line))

    def _table(self) -> Iterator[str]:
        told = [tally for tally in self._cases.tallies.values() if tally.cases or tally.skipped]
        yield f"{'check':16}{'cases':>6}{'findings':>10}{'known':>8}   {_ABOUT}"
        for tally in told:
            if tally.skipped:
                yield f"{tally.check.name:16}{'-':>6}{'-':>10}{'-':>8}   not run: {tally.skipped}"
                continue
            note = " (advisory)" if tally.check.advisory and tally.new else ""
            counts = f"{tally.cases:>6,}{len(tally.new):>10,}{len(tally.known):>8,}"
            yield f"{tally.check.name:16}{counts}   {tally.check.about}{note}"

    def _known_lines(self) -> Iterator[str]:
        """Yields the known findings, with how many findings each explains; in full with -vv."""
        covered = Counter(id(entry) for tally in self._cases.tallies.values() for _, entry in tally.known)
        entries = [entry for entry in self._cases.known if covered[id(entry)]]
        if entries:
            yield ""
            yield f"known, by {KNOWN_FINDINGS}{'' if self._cases.show_all else ' (whole reasons: -vv)'}:"
        for entry in entries:
            yield f"  {_about(entry)}: {pluralize(covered[id(entry)], 'finding')}, {entry.date}"
            if self._cases.show_all:
                yield wrap(entry.reason, _INDENT)
            else:
                yield f"{'':{_INDENT}}{shorten(entry.reason, COLUMNS - _INDENT)}"
        for entry in self._cases.unused_entries():
            yield f"{entry.place} covers nothing any more ({_about(entry)}): remove it"

    def _json(self, status: int, stale: list[KnownFinding]) -> dict[str, object]:
        database = self._cases.database
        return {
            "version": 1,
            "database": str(database.path),
            "against": str(database.against.path) if database.against is not None else None,
            "device": database.device,
            "rows": database.rows,
            "exit_status": status,
            "checks": [
                {
                    "name": tally.check.name,
                    "about": tally.check.about,
                    "remedy": tally.check.remedy,
                    "advisory": tally.check.advisory,
                    "cases": tally.cases,
                    "not_run": tally.skipped,
                    "findings": [asdict(finding) for finding in tally.new],
                    "known": [{**asdict(finding), "known_as": entry.reason} for finding, entry in tally.known],
                }
                for tally in self._cases.tallies.values()
            ],
            "known_findings_without_finding": [entry.place for entry in stale],
        }


def _about(entry: KnownFinding) -> str:
    which = [word for word in (entry.kernel_type, entry.row) if word != ANY]
    return " ".join((", ".join(entry.checks), *which))
