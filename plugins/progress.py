"""Progress: one live line on a terminal, a plain one now and then elsewhere, instead of dots."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import pytest

from database.progress import Progress
from plugins.items import about_row, row_of

#: What `pytest_report_teststatus` gives: a category, the letter of a test, its word.
_TestStatus = tuple[str, str, Any]


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
        #: By node id. A plugin that runs rows again reports them several times: each counts once, as it ended.
        self._done: set[str] = set()
        self._failed: set[str] = set()
        self._progress: Progress | None = None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = len(session.items)
        if session.items and not self._silent and all(row_of(item) for item in session.items):
            self._take_the_line()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self._total = len(ids)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> Generator[None, _TestStatus, _TestStatus]:
        """Whatever category a plugin gives the report of a row, its letter would interrupt the line."""
        status = yield
        if not isinstance(report, pytest.TestReport) or about_row(report) is None or self._silent:
            return status
        return status[0], "", status[2]

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
            (self._failed.add if report.failed else self._failed.discard)(report.nodeid)
            new = report.nodeid not in self._done
            self._done.add(report.nodeid)
            progress.advance(int(new), f"{len(self._failed)} failed" if self._failed else "")

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
