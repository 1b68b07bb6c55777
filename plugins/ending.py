"""The end of a session, in order: records are merged, rows accounted for, reports written."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import pytest

from opatlas.errors import OpAtlasError

from .interrupt import STOPPED, Interrupts
from .records import LOST, UNSAVED, Journaling, WriteBack
from .report import NOT_RUN, Ledger, Report
from .session_context import BenchSession


class Ending:
    """Lives in the only process of a session, or in xdist's controller."""

    def __init__(
        self, session: BenchSession, interrupts: Interrupts, write_back: WriteBack, ledger: Ledger, report: Report
    ) -> None:
        self._session = session
        self._interrupts = interrupts
        self._write_back = write_back
        self._ledger = ledger
        self._report = report

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, None, None]:
        """Innermost: after xdist has ended its workers, and before pytest prints its summary.

        No other plugin's failure at the end keeps records out of the CSVs.
        """
        try:
            return (yield)
        finally:
            plan = self._session.plan_if_made
            if plan is not None and not plan.error and not self._session.settings.collect_only:
                self._end(session)

    def _end(self, session: pytest.Session) -> None:
        if self._interrupts.now:
            self._write_back.close_journal()
            return
        self._ledger.settle(self._write_back.finish())
        self._report.write()
        problems = [*self._write_back.problems, *self._ledger.problems, *self._report.problems]
        wrong = bool(problems or self._ledger.counts()[NOT_RUN])
        # Not INTERNAL_ERROR, after which pytest shows no summary, and nobody would learn of this.
        if wrong and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        # "Interrupted" is what pytest calls any early end; here it means that the user interrupted.
        if session.exitstatus == pytest.ExitCode.INTERRUPTED and self._session.stop_reason not in ("", STOPPED):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


class WorkerEnding:
    """The end of a worker: its journal is closed, for the controller to merge."""

    def __init__(self, journaling: Journaling, output: dict[str, Any]) -> None:
        """`output` is what xdist brings to the controller when the worker has ended."""
        self._journaling = journaling
        self._output = output

    def pytest_opatlas_unsaved(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Hands records that the journal had no room for to the controller."""
        self._output[UNSAVED] = [*self._output.get(UNSAVED, ()), *records]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Before xdist's own, which sends the worker's output to the controller."""
        try:
            self._journaling.close()
        except (OpAtlasError, OSError) as error:
            self._output[LOST] = str(error)
