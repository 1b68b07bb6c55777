"""What pytest shows of rows while they run: a row's numbers beside its word (-v), or a line a minute."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from datetime import timedelta
from typing import Any

import pytest

from opatlas.show.row_summary import RowSummary
from opatlas.text import shortened

from .row_note import note_of
from .session_context import SessionContext

#: Seconds between two lines.
EVERY_S = 60.0
_REASON_SHOWN = 100


class RowProgress:
    """Adds to pytest's progress what is known of rows. Other tests keep pytest's progress."""

    def __init__(self, context: SessionContext, terminal: pytest.TerminalReporter) -> None:
        self._context = context
        self._terminal = terminal
        self._total = 0
        #: Node ids: a plugin may run a row again.
        self._done: set[str] = set()
        self._started = self._last_line = time.monotonic()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._start(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._start(len(ids))

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(
        self, report: pytest.TestReport | pytest.CollectReport
    ) -> Generator[None, tuple[str, str, Any], tuple[str, str, Any]]:
        """Adds duration, noise and rate of a measured row, or the reason of a failure, to the word that -v shows."""
        category, letter, word = yield
        # `ReplaySession.keep` takes both out of the note, before the short summary asks again.
        note = (note_of(report) if isinstance(report, pytest.TestReport) else None) or {}
        if not word or not isinstance(word, str):
            return category, letter, word
        if "figures" in note:
            word = f"{word} {RowSummary.from_json(note['figures']).text()}"
        elif report.failed and "record" in note:
            reason = f"{note['record']['status']}: {note['record']['reason']}".partition("\n")[0]
            word = f"{word} {shortened(reason, _REASON_SHOWN)}"
        return category, letter, word

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Prints a line a minute, unless -v shows each row."""
        if report.when == "call" or not report.passed:
            self._done.add(report.nodeid)
        now = time.monotonic()
        if note_of(report) is None or self._terminal.verbosity > 0 or now - self._last_line < EVERY_S:
            return
        self._last_line = now
        done, unit = len(self._done), self._context.settings.unit
        rate = max(done, 1) / (now - self._started)
        left = timedelta(seconds=round((self._total - done) / rate))
        self._terminal.write_line(f"opatlas: {done:,} of {self._total:,} {unit}s, {rate:.3g} {unit}s/s, {left} left")

    def _start(self, total: int) -> None:
        self._total = total
        self._started = self._last_line = time.monotonic()
