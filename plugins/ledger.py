"""The ledger: every row that was collected is accounted for, once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from database.case_id import case_id_in, case_id_of
from database.record import Record
from plugins.items import about_row, outcome_of_report, row_of
from plugins.session import BenchSession

NOT_RUN = "not run"
XFAILED = "xfailed"
#: A row that fails without being run (--strict).
GIVEN_UP = "given up"


class Ledger:
    """What became of each row. Lives in the only process of a session, or in xdist's controller.

    Attributes:
        problems: rows that do not add up: reported by two workers, or never collected.
    """

    def __init__(self, session: BenchSession) -> None:
        self._session = session
        self._collected: set[str] = set()
        self._accounts: dict[str, str] = {}
        #: The worker of xdist that reported each row; None in the only process of a session.
        self._reporters: dict[str, Any] = {}
        self.problems: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._collected.update(case_id_in(item.nodeid) for item in session.items if row_of(item) is not None)

    @pytest.hookimpl(tryfirst=True, optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """In xdist's controller, for each worker; the first one's collection is everybody's."""
        plan = self._session.plan_if_made
        if plan is not None and not self._collected:
            self._collected.update(plan.case_ids().intersection(map(case_id_in, ids)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        about = about_row(report)
        if about is None:
            return
        if outcome_of_report(report) == "xfailed":
            self._account(case_id_in(report.nodeid), XFAILED, getattr(report, "node", None))
        elif "given_up" in about:
            self._account(case_id_in(report.nodeid), GIVEN_UP, getattr(report, "node", None))
        elif "record" in about:
            self._account(case_id_in(report.nodeid), about["record"]["status"], getattr(report, "node", None))

    def settle(self, records: Iterable[Record]) -> None:
        """Accounts for rows whose record was kept, but whose report was lost with the worker that ran them."""
        if len(self._accounts) == len(self._collected):
            return
        for record in records:
            case_id = case_id_of(record.kernel_type, record.signature)
            if case_id in self._collected:
                self._accounts.setdefault(case_id, record.status.value)

    def counts(self) -> Counter[str]:
        """Rows by what became of them; the sum is the collection."""
        counts = Counter(self._accounts.values())
        not_run = len(self._collected) - len(self._accounts)
        if not_run:
            counts[NOT_RUN] = not_run
        return counts

    @property
    def collected(self) -> int:
        """How many rows were collected."""
        return len(self._collected)

    def kernel_types(self) -> set[str]:
        """The kernel types of the rows that were collected."""
        plan = self._session.plan_if_made
        tables = plan.tables.items() if plan is not None else ()
        return {name for name, table in tables if not self._collected.isdisjoint(table.cases.values())}

    def not_run(self) -> list[str]:
        """The ids of the rows that were collected and not run."""
        return sorted(self._collected.difference(self._accounts))

    def line(self) -> str:
        """`195 rows collected = 193 measured + 2 failed`."""
        counts, unit = self.counts(), self._session.settings.unit
        terms = " + ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda entry: -entry[1]))
        # Without commas, as the terms: a script may add them up.
        return f"{counts.total()} {unit if counts.total() == 1 else f'{unit}s'} collected = {terms}"

    def unresolved(self) -> Counter[str]:
        """Rows that an earlier session left without a measurement and this one did not run, by status."""
        plan = self._session.plan_if_made
        before = plan.unresolved() if plan is not None else {}
        return Counter(status for case_id, status in before.items() if case_id not in self._accounts)

    def _account(self, case_id: str, what: str, reporter: Any) -> None:
        """Args: reporter: who ran the row. It may run the row again (pytest-rerunfailures): the last run counts."""
        if case_id not in self._collected:
            self.problems.append(f"{case_id} was reported as {what}, but not collected")
        elif self._reporters.setdefault(case_id, reporter) is not reporter:
            self.problems.append(f"{case_id} was reported by two workers: as {self._accounts[case_id]}, then as {what}")
        else:
            self._accounts[case_id] = what
