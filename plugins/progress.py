"""Progress: one live line on a terminal, a plain one now and then elsewhere, instead of dots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from database.progress import Progress
from plugins.supervisor import about_row, row_of


class ReplayProgress:
    """Counts the rows that are done. Other tests keep pytest's own progress."""

    def __init__(self, terminal: Any, verbosity: int) -> None:
        """`terminal` is pytest's terminal reporter; with -v it shows each row as it does each test."""
        self._terminal = terminal
        self._silent = verbosity > 0
        self._total = 0
        self._failed = 0
        self._progress: Progress | None = None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = len(session.items)
        if session.items and not self._silent and all(row_of(item) for item in session.items):
            # File names would interrupt the line.
            self._terminal.showfspath = False

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self._total = len(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> tuple[str, str, str | Mapping[str, bool]] | None:
        if not isinstance(report, pytest.TestReport) or about_row(report) is None or self._silent:
            return None
        if report.when != "call" and report.passed:
            return "", "", ""
        return _category(report), "", ""

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if about_row(report) is None or self._silent:
            return
        if self._progress is None:
            self._terminal.ensure_newline()
            self._progress = Progress(self._total, "rows", stream=self._terminal._tw._file)
        if report.when == "call" or not report.passed:
            self._failed += report.failed
            self._progress.advance(1, f"{self._failed} failed" if self._failed else "")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if self._progress is not None:
            self._progress.close()


def _category(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return "error" if report.failed and report.when != "call" else report.outcome
