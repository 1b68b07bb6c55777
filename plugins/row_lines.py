"""-v: each row in one line with its numbers, in place of its node id. -vv: the numbers behind its node id."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from opatlas.model.signature import case_id_in
from opatlas.report.row_summary import RowSummary, microseconds_text, shapes_of
from opatlas.text import columns, counted, shortened, shown

from .collector import about_row
from .plan import CaseRow
from .session_context import BenchSession

#: Columns for the numbers of a row, and the width from which on there are more of them.
_FIGURES, _MORE_FIGURES, _WIDE = 37, 48, 100
_PROGRESS = len(" [100%]")
_LONGEST_WORD = len("SKIPPED")
_LEAST_FIGURES = len("601 us ±2.1 % (20)")
_Word = tuple[str, str, Any]


class RowLines:
    """Takes the lines of rows from pytest's reporter; other tests keep theirs."""

    def __init__(self, session: BenchSession, terminal: pytest.TerminalReporter, verbosity: int) -> None:
        """`verbosity` is 1 or more."""
        self._session = session
        self._with_ids = verbosity > 1
        self._terminal = terminal
        self._rows: dict[str, CaseRow] = {}
        self._total = 0
        self._done: set[str] = set()
        #: What pytest says of the report that is told now; None between two reports.
        self._word: _Word | None = None
        self._telling = False

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._total = len(session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._total = len(ids)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str) -> Generator[None, Any, Any]:
        """The reporter writes the node id here if -v is given, and the file if it is not."""
        row = self._row(nodeid)
        if row is None or self._with_ids:
            return (yield)
        option = self._terminal.config.option
        verbose, option.verbose = option.verbose, -1
        try:
            result = yield
        finally:
            option.verbose = verbose
        if not self._session.is_controller:
            self._terminal.write_ensure_prefix(self._name(row), "")
            self._terminal.flush()
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> Generator[None, _Word, _Word]:
        """The reporter writes nothing of a report without a letter and a word."""
        status = yield
        about = about_row(report) if isinstance(report, pytest.TestReport) else None
        # At the end the reporter asks again, for its short summary.
        if about is None or not self._telling:
            return status
        if self._with_ids:
            numbers = RowSummary.from_json(about["figures"]).text() if "figures" in about else ""
            return (
                (status[0], status[1], f"{status[2]} {numbers}") if numbers and isinstance(status[2], str) else status
            )
        self._word = status
        return status[0], "", ""

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, Any, Any]:
        about = about_row(report)
        # Nobody keeps these for longer.
        record, numbers = ({}, None) if about is None else (about.get("record", {}), about.get("figures"))
        self._telling, self._word = True, None
        try:
            result = yield
        finally:
            self._telling = False
        if report.when == "call" or not report.passed:
            self._done.add(report.nodeid)
        row = self._row(report.nodeid)
        if about is None or row is None or self._word is None or not self._word[2]:
            return result
        figures = RowSummary.from_json(numbers) if numbers else None
        reason = f"{record['status']}: {record['reason']}" if record else str(getattr(report, "wasxfail", ""))
        self._tell(row, report, self._word[2], figures, reason)
        return result

    def _tell(
        self, row: CaseRow, report: pytest.TestReport, word: Any, figures: RowSummary | None, reason: str
    ) -> None:
        terminal = self._terminal
        word, markup = word if isinstance(word, tuple) else (word, _markup(report))
        worker = f"[{report.node.gateway.id}] " if self._session.is_controller and hasattr(report, "node") else ""
        name = self._name(row, worker)
        if worker:
            terminal.ensure_newline()
            terminal.write(name)
        else:
            terminal.write_ensure_prefix(name, "")
        # A plugin's word may be long.
        room = min(_figures_width(), columns() - len(name) - len(word) - _PROGRESS - 2)
        text = shortened(shown(reason).partition("\n")[0], room) if figures is None else figures.text(room)
        text = f"{text:{room}}" if room >= _LEAST_FIGURES else ""
        terminal.write(f"{text} ")
        terminal.write(word, **markup)
        percent = f"[{100 * len(self._done) // max(self._total, 1):3d}%]"
        fill = columns() - len(name) - len(text) - len(word) - 2
        terminal.write(percent.rjust(max(fill, len(percent) + 1)), flush=True, cyan=True)
        # A line is open, which belongs to nobody.
        terminal.currentfspath = -2
        # Rows count in the percentages of other tests, and in what pytest tells the terminal of its progress. Since
        # pytest 9.2 what it counts by is no text.
        reported: set[Any] = terminal._progress_nodeids_reported
        reported.add(getattr(report, "id", report.nodeid))

    def _row(self, nodeid: str) -> CaseRow | None:
        plan = self._session.plan_if_made
        if not self._rows and plan is not None:
            self._rows = {
                case_id: CaseRow(table, position)
                for table in plan.tables.values()
                for position, case_id in table.cases.items()
            }
        return self._rows.get(case_id_in(nodeid))

    def _name(self, row: CaseRow, worker: str = "") -> str:
        width = columns() - _figures_width() - _LONGEST_WORD - _PROGRESS - 4
        name = shown(f"{worker}{row.kernel_type} {shapes_of(row.kernel_type, row.cells)}")
        return f"{shortened(name, width):{width}}  "


def _markup(report: pytest.TestReport) -> dict[str, bool]:
    if report.failed:
        return {"red": True}
    return {"yellow": True} if report.skipped or hasattr(report, "wasxfail") else {"green": True}


def _figures_width() -> int:
    return _MORE_FIGURES if columns() >= _WIDE else _FIGURES


#: Properties of a row's report, which JUnit shows too.
_STORED, _TAKEN = "stored_us", "duration_us"
_SHOWN = 20


@dataclass(frozen=True)
class Compared:
    """A row's stored duration and its new one, in microseconds."""

    case_id: str
    stored_us: float
    taken_us: float

    @property
    def ratio(self) -> float:
        """How many times as long the new one is."""
        return self.taken_us / self.stored_us

    def __str__(self) -> str:
        return f"{self.ratio:8.3f} x {self.taken_us:14,.4f} us, stored {self.stored_us:14,.4f} us"


class Comparison:
    """Registered with --read-only, in the only process of a session, or in xdist's controller."""

    def __init__(self, session: BenchSession, verbosity: int) -> None:
        self._session = session
        self._verbosity = verbosity
        #: By case, for another plugin may run a row again.
        self._compared: dict[str, Compared] = {}
        self._without: set[str] = set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if compared := _compared(report):
            self._compared[compared.case_id] = compared
        elif _measured(report):
            self._without.add(report.nodeid)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
        """With -v, the durations of each row in its line."""
        if self._verbosity <= 0 or not isinstance(report, pytest.TestReport) or not report.passed:
            return None
        compared = _compared(report)
        if compared is None:
            return None
        return "passed", "", f"PASSED {compared.ratio:.3f} x of {microseconds_text(compared.stored_us)} stored"

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Registered before the report, whose lines come first then."""
        plan = self._session.plan_if_made
        if plan is not None and not plan.error:
            for line in self._lines():
                terminalreporter.write_line(line)

    def _lines(self) -> Iterator[str]:
        unit = self._session.settings.unit
        if self._compared:
            yield f"{counted(len(self._compared), unit)} beside their stored durations, the furthest apart first:"
            shown = None if self._verbosity > 0 else _SHOWN
            for compared in sorted(self._compared.values(), key=lambda each: -abs(math.log(each.ratio)))[:shown]:
                yield f"{compared}  {compared.case_id}"
            if shown is not None and len(self._compared) > shown:
                yield f"and {counted(len(self._compared) - shown, 'more', 'more')} (-v shows all)"
        if self._without:
            yield f"{counted(len(self._without), unit)} measured without a stored duration"
        yield "--read-only: nothing was written into the database"


def stored_properties(row: CaseRow) -> list[tuple[str, object]]:
    """What the report of a measured row tells of the duration that the database holds."""
    return [] if row.stored_us is None else [(_STORED, row.stored_us)]


def _measured(report: pytest.TestReport) -> bool:
    return about_row(report) is not None and report.when == "call" and _TAKEN in dict(report.user_properties)


def _compared(report: pytest.TestReport) -> Compared | None:
    """None for a report of another test, or of a row that was not measured now and before."""
    properties = dict(report.user_properties)
    stored, taken = properties.get(_STORED), properties.get(_TAKEN)
    if not _measured(report) or not isinstance(stored, float) or not isinstance(taken, float):
        return None
    return Compared(case_id_in(report.nodeid), stored, taken)
