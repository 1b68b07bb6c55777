"""-v prints a line with the figures of each row instead of its node id; -vv prints node id and figures."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pytest

from opatlas.model.signature import case_id_in
from opatlas.report.row_summary import RowSummary, row_shapes
from opatlas.text import printable_lines, shorten, terminal_columns

from .plan import CaseRow
from .row_note import note_of
from .session_context import SessionContext

#: Columns for the numbers of a row, and the width from which on there are more of them.
_FIGURES, _MORE_FIGURES, _WIDE = 37, 48, 100
_PROGRESS = len(" [100%]")
_LONGEST_WORD = len("SKIPPED")
_LEAST_FIGURES = len("601 us ±2.1 % (20)")
_Word = tuple[str, str, Any]


class RowLines:
    """Prints the lines of rows; other tests keep pytest's lines."""

    def __init__(self, context: SessionContext, terminal: pytest.TerminalReporter, verbosity: int) -> None:
        """`verbosity` is 1 or more."""
        self._context = context
        self._with_ids = verbosity > 1
        self._terminal = terminal
        self._rows: dict[str, CaseRow] = {}
        self._total = 0
        self._done: set[str] = set()
        #: Category, letter and word of the current report; None between two reports.
        self._word: _Word | None = None
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
    ) -> Generator[None, _Word, _Word]:
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
        # After the report is shown, the note has them no more.
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
        reason = f"{record['status']}: {record['reason']}" if record else str(getattr(report, "wasxfail", ""))
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
        room = min(_figures_width(), terminal_columns() - len(name) - len(word) - _PROGRESS - 2)
        text = shorten(printable_lines(reason).partition("\n")[0], room) if figures is None else figures.text(room)
        text = f"{text:{room}}" if room >= _LEAST_FIGURES else ""
        terminal.write(f"{text} ")
        terminal.write(word, **markup)
        percent = f"[{100 * len(self._done) // max(self._total, 1):3d}%]"
        fill = terminal_columns() - len(name) - len(text) - len(word) - 2
        terminal.write(percent.rjust(max(fill, len(percent) + 1)), flush=True, cyan=True)
        # The terminal has an unfinished line that is not of pytest.
        terminal.currentfspath = -2
        # Rows count in the percentages of other tests, and in what pytest tells the terminal of its progress. Since
        # pytest 9.2 what it counts by is no text.
        reported: set[Any] = terminal._progress_nodeids_reported
        reported.add(getattr(report, "id", report.nodeid))

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
        width = terminal_columns() - _figures_width() - _LONGEST_WORD - _PROGRESS - 4
        name = printable_lines(f"{worker}{row.kernel_type} {row_shapes(row.kernel_type, row.cells)}")
        return f"{shorten(name, width):{width}}  "


def _markup(report: pytest.TestReport) -> dict[str, bool]:
    if report.failed:
        return {"red": True}
    return {"yellow": True} if report.skipped or hasattr(report, "wasxfail") else {"green": True}


def _figures_width() -> int:
    return _MORE_FIGURES if terminal_columns() >= _WIDE else _FIGURES
