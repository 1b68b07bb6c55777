"""What the terminal shows of rows while they run, instead of pytest's dots: a live line, or with -v a line a row."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from functools import cached_property
from typing import Any, TextIO

import pytest

from opatlas.model.schema import INPUT_SHAPES
from opatlas.model.signature import case_id_in
from opatlas.progress import Progress, format_seconds
from opatlas.report.row_summary import RowSummary, row_shapes
from opatlas.text import printable_lines, shorten, terminal_columns

from .collector import row_of
from .plan import CaseRow
from .pytest_internals import count_in_progress, hide_progress
from .row_note import note_of
from .session_context import SessionContext
from .tally import RunningTime

#: The result of `pytest_report_teststatus`: category, letter and word of a test.
_TestStatus = tuple[str, str, Any]
#: How often the running row is looked at.
_LOOK_EVERY_S = 1.0
#: A row that runs for longer is named on a terminal.
_NAMED_AFTER_S = 2.0
#: A row that runs for longer is named once in a log.
NAMED_IN_LOG_AFTER_S = 60.0


#: Columns for the numbers of a row, and the width from which on there are more of them.
_FIGURES, _MORE_FIGURES, _WIDE = 37, 48, 100
_PERCENT = len(" [100%]")
_LONGEST_WORD = len("SKIPPED")
_LEAST_FIGURES = len("601 us ±2.1 % (20)")


class ReplayProgress:
    """Counts the rows that are done, and names a row that runs for long. Other tests keep pytest's progress."""

    def __init__(self, context: SessionContext, terminal: Any, option: Any, running_time: RunningTime) -> None:
        """
        Args:
            terminal: pytest's terminal reporter; with -v it shows each row, and there is no live line.
            option: pytest's options.
            running_time: has the time that rows waited for other sessions; the rate leaves this time out.
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
            hide_progress(self._terminal)

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
            self._progress.clear()
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
            hide_progress(self._terminal)
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


class RowLines:
    """Prints a line of figures for each row instead of its node id; with -vv both. Other tests keep pytest's lines."""

    def __init__(self, context: SessionContext, terminal: pytest.TerminalReporter, verbosity: int) -> None:
        """`verbosity` is 1 or more."""
        self._context = context
        self._with_ids = verbosity > 1
        self._terminal = terminal
        self._rows: dict[str, CaseRow] = {}
        self._total = 0
        self._done: set[str] = set()
        #: Category, letter and word of the current report; None between two reports.
        self._word: _TestStatus | None = None
        self._telling = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._total = len(ids)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logstart(self, nodeid: str) -> Generator[None, Any, Any]:
        """Prints the name of a row instead of its node id."""
        row = self._row(nodeid)
        if row is None or self._with_ids:
            return (yield)
        option = self._terminal.config.option
        verbose, option.verbose = option.verbose, -1
        try:
            result = yield
        finally:
            option.verbose = verbose
        if not self._context.is_controller:
            self._terminal.write_ensure_prefix(self._name(row), "")
            self._terminal.flush()
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> Generator[None, _TestStatus, _TestStatus]:
        """Takes the word of a row's report: without a word, pytest's reporter prints nothing."""
        status = yield
        note = note_of(report) if isinstance(report, pytest.TestReport) else None
        # At the end the reporter asks again for its short summary.
        if note is None or not self._telling:
            return status
        if self._with_ids:
            numbers = RowSummary.from_json(note["figures"]).text() if "figures" in note else ""
            return (
                (status[0], status[1], f"{status[2]} {numbers}") if numbers and isinstance(status[2], str) else status
            )
        self._word = status
        return status[0], "", ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, Any, Any]:
        note = note_of(report)
        # `ReplaySession.keep` removes both from the note.
        record, numbers = ({}, None) if note is None else (note.get("record", {}), note.get("figures"))
        self._telling, self._word = True, None
        try:
            result = yield
        finally:
            self._telling = False
        if report.when == "call" or not report.passed:
            self._done.add(report.nodeid)
        row = self._row(report.nodeid)
        if note is None or row is None or self._word is None or not self._word[2]:
            return result
        figures = RowSummary.from_json(numbers) if numbers else None
        skipped = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else ""
        reason = f"{record['status']}: {record['reason']}" if record else str(getattr(report, "wasxfail", skipped))
        self._tell(row, report, self._word[2], figures, reason)
        return result

    def _tell(
        self, row: CaseRow, report: pytest.TestReport, word: Any, figures: RowSummary | None, reason: str
    ) -> None:
        terminal = self._terminal
        word, markup = word if isinstance(word, tuple) else (word, _markup(report))
        worker = f"[{report.node.gateway.id}] " if self._context.is_controller and hasattr(report, "node") else ""
        name = self._name(row, worker)
        if worker:
            terminal.ensure_newline()
            terminal.write(name)
        else:
            terminal.write_ensure_prefix(name, "")
        # The word of another plugin may be long.
        room = min(_figures_width(), terminal_columns() - len(name) - len(word) - _PERCENT - 2)
        text = shorten(printable_lines(reason).partition("\n")[0], room) if figures is None else figures.text(room)
        text = f"{text:{room}}" if room >= _LEAST_FIGURES else ""
        terminal.write(f"{text} ")
        terminal.write(word, **markup)
        percent = f"[{100 * len(self._done) // max(self._total, 1):3d}%]"
        fill = terminal_columns() - len(name) - len(text) - len(word) - 2
        terminal.write(percent.rjust(max(fill, len(percent) + 1)), flush=True, cyan=True)
        # pytest must end the unfinished line before it prints.
        terminal.currentfspath = -2
        count_in_progress(terminal, report)

    def _row(self, nodeid: str) -> CaseRow | None:
        plan = self._context.plan
        if not self._rows and plan is not None:
            self._rows = {
                case_id: CaseRow(table, position)
                for table in plan.tables.values()
                for position, case_id in table.cases.items()
            }
        return self._rows.get(case_id_in(nodeid))

    def _name(self, row: CaseRow, worker: str = "") -> str:
        width = terminal_columns() - _figures_width() - _LONGEST_WORD - _PERCENT - 4
        implementation = row.table.suffix.replace("-", " ", 1)
        shapes = row_shapes(row.kernel_type, row.cells)
        name = printable_lines(f"{worker}{row.kernel_type}{implementation} {shapes}")
        return f"{shorten(name, width):{width}}  "


def _markup(report: pytest.TestReport) -> dict[str, bool]:
    if report.failed:
        return {"red": True}
    return {"yellow": True} if report.skipped or hasattr(report, "wasxfail") else {"green": True}


def _figures_width() -> int:
    return _MORE_FIGURES if terminal_columns() >= _WIDE else _FIGURES
