"""The progress of rows instead of pytest's dots: a live line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from functools import cached_property
from typing import Any, TextIO

import pytest

from opatlas.model.schema import INPUT_SHAPES
from opatlas.model.signature import case_id_in
from opatlas.progress import Progress, format_seconds

from .collector import row_of
from .report import RunningTime
from .row_note import note_of
from .session_context import SessionContext

#: The result of `pytest_report_teststatus`: category, letter and word of a test.
_TestStatus = tuple[str, str, Any]
#: How often the running row is looked at.
_LOOK_EVERY_S = 1.0
#: A row that runs for longer is named on a terminal.
_NAMED_AFTER_S = 2.0
#: A row that runs for longer is named once in a log.
NAMED_IN_LOG_AFTER_S = 60.0


class ReplayProgress:
    """Counts the rows that are done, and names a row that runs for long. Other tests keep pytest's progress."""

    def __init__(self, context: SessionContext, terminal: Any, option: Any, running_time: RunningTime) -> None:
        """
        Args:
            terminal: pytest's terminal reporter; with -v it shows each row, and there is no live line.
            option: pytest's options.
            running_time: has the time that rows waited for other sessions, which counts for no rate.
        """
        self._context = context
        self._terminal = terminal
        self._running_time = running_time
        self._silent = option.verbose > 0
        # A live line would disturb the output of a body, a debugger, and a body that is timed in this process.
        self._names_rows = not (option.in_process or option.usepdb or option.capture == "no")
        self._total = 0
        #: Node ids. A plugin may run a row again: the row counts once, with its last outcome.
        self._done: set[str] = set()
        self._failed: set[str] = set()
        #: When each running test began, by node id; the first one began first.
        self._running: dict[str, float] = {}
        self._named_in_log: set[str] = set()
        self._progress: Progress | None = None
        self._stream: TextIO | None = None
        self._ticker: _Ticker | None = None

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = len(session.items)
        if session.items and not self._silent and all(row_of(item) for item in session.items):
            self._take_the_line()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self._total = len(ids)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> Generator[None, _TestStatus, _TestStatus]:
        """Removes the letter of a row, which would interrupt the live line."""
        status = yield
        if not isinstance(report, pytest.TestReport) or note_of(report) is None or self._silent:
            return status
        return status[0], "", status[2]

    def show_launched(self, launched: int, of: int) -> None:
        """Shows how many rows of a batch have run; their samples are not known yet."""
        if not self._silent:
            self._started().advance(0, f"{launched} of {of} launched" if launched < of else "waiting for the profile")

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when not in ("setup", "call"):
            # The report of a worker that crashed has no phase.
            self._running.pop(report.nodeid, None)
        if note_of(report) is None or self._silent:
            return
        progress = self._started()
        if report.when == "call" or not report.passed:
            (self._failed.add if report.failed else self._failed.discard)(report.nodeid)
            new = report.nodeid not in self._done
            self._done.add(report.nodeid)
            self._terminal.flush()
            progress.left_out_s = self._running_time.waited_each_s
            progress.advance(int(new), f"{len(self._failed)} failed" if self._failed else "")

    def pytest_enter_pdb(self) -> None:
        self._stop_naming()

    def pytest_sessionfinish(self) -> None:
        self._stop_naming()
        if self._progress is not None:
            self._progress.close()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def name_running(self) -> None:
        """Names the row that has been running the longest, if it runs for long."""
        # A copy: another thread adds and removes rows.
        running = tuple(self._running.items())
        nodeid, began = next((each for each in running if case_id_in(each[0]) in self._names), ("", 0.0))
        if not nodeid or self._progress is None:
            return
        seconds = time.monotonic() - began
        if seconds < (_NAMED_AFTER_S if self._progress.on_terminal else NAMED_IN_LOG_AFTER_S):
            return
        if not self._progress.on_terminal:
            if nodeid in self._named_in_log:
                return
            self._named_in_log.add(nodeid)
        wait = self._context.waits.current
        how_long = format_seconds(seconds) if wait is None else f"waiting {format_seconds(wait.seconds)} for the device"
        self._progress.show(self._names[case_id_in(nodeid)], f"({how_long})")

    @cached_property
    def _names(self) -> dict[str, str]:
        """The name of each case, by its id: `MatMulV2 1,1024;4096,1024`; a message has its id as name."""
        plan = self._context.plan
        names = {}
        for table in plan.tables.values() if plan is not None else ():
            shapes = table.columns.get(INPUT_SHAPES, ())
            for position, case_id in table.cases.items():
                names[case_id] = f"{table.kernel_type} {shapes[position]}" if shapes and shapes[position] else case_id
        return names

    def _started(self) -> Progress:
        if self._progress is None:
            self._take_the_line()
            self._terminal.ensure_newline()
            self._terminal.flush()
            self._stream = _own_stdout() if self._names_rows else None
            self._progress = Progress(self._total, f"{self._context.settings.unit}s", stream=self._stream or sys.stdout)
            if self._stream is not None:
                self._ticker = _Ticker(self.name_running)
        return self._progress

    def _stop_naming(self) -> None:
        if self._ticker is not None:
            self._ticker.stop()
            self._ticker = None

    def _take_the_line(self) -> None:
        """Switches off pytest's file names and percentages, which would interrupt the live line."""
        self._terminal.showfspath = False
        self._terminal._show_progress_info = False


class _Ticker:
    """Calls a function about once a second, in a thread."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="opatlas-progress", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Waits for the last call to end."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(_LOOK_EVERY_S):
            self._tick()


def _own_stdout() -> TextIO | None:
    """Returns a new stream to the output of this process; None if it is not a file.

    While a row runs, pytest captures the usual stream.
    """
    try:
        descriptor = os.dup(sys.stdout.fileno())
    except (OSError, ValueError):
        return None
    return open(descriptor, "w", encoding=sys.stdout.encoding, errors="replace")
