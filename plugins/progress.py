"""Progress: one live line on a terminal, a plain one now and then elsewhere, instead of dots."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from database.progress import Progress
from plugins.items import about_row, outcome_of_report, row_of

_WORDS = {"failed": "FAILED", "error": "ERROR", "skipped": "SKIPPED", "xfailed": "XFAIL", "xpassed": "XPASS"}


class ReplayProgress:
    """Counts the rows that are done. Other tests keep pytest's own progress."""

    def __init__(self, terminal: Any, verbosity: int, unit: Callable[[], str]) -> None:
        """
        Args:
            terminal: pytest's terminal reporter; with -v it shows each row as it does each test.
            unit: what a case is called, asked for when the first of them is done.
        """
        self._unit = unit
        self._terminal = terminal
        self._silent = verbosity > 0
        self._total = 0
        self._failed = 0
        self._progress: Progress | None = None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = len(session.items)
        if session.items and not self._silent and all(row_of(item) for item in session.items):
            self._take_the_line()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self._total = len(ids)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> tuple[str, str, str | Mapping[str, bool]] | None:
        if not isinstance(report, pytest.TestReport) or about_row(report) is None or self._silent:
            return None
        if report.passed and not hasattr(report, "wasxfail"):
            return "passed" if report.when == "call" else "", "", ""
        category = outcome_of_report(report)
        # No letter for the line of dots, but a word for pytest's short summary.
        return category, "", _WORDS[category]

    @pytest.hookimpl
    def pytest_opatlas_launched(self, launched: int, of: int) -> None:
        if not self._silent:
            self._started().advance(0, f"{launched} of {of} launched" if launched < of else "waiting for the profile")

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if about_row(report) is None or self._silent:
            return
        progress = self._started()
        if report.when == "call" or not report.passed:
            self._failed += report.failed
            progress.advance(1, f"{self._failed} failed" if self._failed else "")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        if self._progress is not None:
            self._progress.close()

    def _started(self) -> Progress:
        if self._progress is None:
            self._take_the_line()
            self._terminal.ensure_newline()
            self._progress = Progress(self._total, f"{self._unit()}s", stream=self._terminal._tw._file)
        return self._progress

    def _take_the_line(self) -> None:
        """pytest's file names and percentages would interrupt it."""
        self._terminal.showfspath = False
        self._terminal._show_progress_info = False
