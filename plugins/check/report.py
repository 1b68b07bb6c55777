"""What `opatlas check` tells: a table of the checks at the end, and all findings as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import msgspec
import pytest

from opatlas.checks.known import ANY, KNOWN_FINDINGS, KnownFinding
from opatlas.errors import OpAtlasError
from opatlas.store.csv_files import write_text
from opatlas.text import (
    counted,
    folded,
    shortened,
    shown,
)

from .check_plugin import Cases

_INDENT = 4
_COLUMNS = 80


class CheckReport:
    """Tells what the cases found."""

    def __init__(self, cases: Cases, *, json_path: Path | None) -> None:
        self._cases = cases
        self._json_path = json_path
        self._problem = ""

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and terminal.showheader:
            database = self._cases.database
            device = f" of {database.device}" if database.device else ""
            types = counted(len(database.kernel_types), "kernel type")
            terminal.write_line(shown(f"{database.path}: {counted(database.rows, 'row')} of {types}{device}"))

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        stale = self._cases.covering_nothing()
        if stale and self._cases.strict and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if self._json_path is not None and session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            try:
                write_text(self._json_path, self._json(int(session.exitstatus), stale))
            except OpAtlasError as error:
                self._problem = f"error: --json {error}"
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.write_sep("=", "checks")
        for line in self._lines():
            terminalreporter.write_line(shown(line))

    def _lines(self) -> Iterator[str]:
        told = [tally for tally in self._cases.tallies.values() if tally.cases or tally.skipped]
        yield f"{'check':16}{'cases':>6}{'findings':>10}{'known':>8}   what it looks for"
        for tally in told:
            if tally.skipped:
                yield f"{tally.check.name:16}{'-':>6}{'-':>10}{'-':>8}   not run: {tally.skipped}"
                continue
            note = " (advisory)" if tally.check.advisory and tally.new else ""
            counts = f"{tally.cases:>6,}{len(tally.new):>10,}{len(tally.known):>8,}"
            yield f"{tally.check.name:16}{counts}   {tally.check.about}{note}"
        yield from self._known_lines()
        if self._problem:
            yield self._problem

    def _known_lines(self) -> Iterator[str]:
        """The entries with what they cover: a line each, whole with --all."""
        covered = Counter(id(entry) for tally in self._cases.tallies.values() for _, entry in tally.known)
        entries = [entry for entry in self._cases.known if covered[id(entry)]]
        if entries:
            yield ""
            yield f"known, by {KNOWN_FINDINGS}{'' if self._cases.show_all else ' (whole reasons: --all)'}:"
        for entry in entries:
            yield f"  {_about(entry)}: {counted(covered[id(entry)], 'finding')}, {entry.date}"
            if self._cases.show_all:
                yield folded(entry.reason, _INDENT)
            else:
                yield f"{'':{_INDENT}}{shortened(entry.reason, _COLUMNS - _INDENT)}"
        for entry in self._cases.covering_nothing():
            yield f"{entry.place} covers nothing any more ({_about(entry)}): remove it"

    def _json(self, status: int, stale: list[KnownFinding]) -> str:
        database = self._cases.database
        values = {
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
        return msgspec.json.format(msgspec.json.encode(values), indent=2).decode() + "\n"


def _about(entry: KnownFinding) -> str:
    which = [word for word in (entry.kernel_type, entry.row) if word != ANY]
    return " ".join((", ".join(entry.checks), *which))
