"""--read-only: each duration beside the one that the database holds, which stays as it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from database.case_id import case_id_in
from database.figures import microseconds_text
from database.terminal import counted
from plugins.items import about_row
from plugins.session import BenchSession
from plugins.table_plan import CaseRow

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
