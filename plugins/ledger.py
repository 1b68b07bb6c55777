"""The ledger of a session: accounts for each collected row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

import pytest

from opatlas.row.record import Record
from opatlas.row.signature import case_id_in, make_case_id

from .row_note import RowNote, outcome_of_report
from .session_context import SessionContext

NOT_RUN = "not run"
XFAILED = "xfailed"
#: A row whose kernel type has no replay.
WITHOUT_REPLAY = "without a replay"
#: A row that fails without being run (--strict).
GIVEN_UP = "given up"


class Ledger:
    """The account of each collected row. Used in the main process of a session.

    Attributes:
        without_replay: ids of the collected rows whose kernel type has no replay.
        problems: rows that two workers reported, or that were not collected.
    """

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._collected: set[str] = set()
        #: By case id: the status of the row, or another outcome.
        self._accounts: dict[str, str] = {}
        #: The worker of xdist that reported each row; None without xdist.
        self._reporters: dict[str, Any] = {}
        self.without_replay: set[str] = set()
        self.problems: list[str] = []

    def collect(self, case_ids: Collection[str], without_replay: Collection[str]) -> None:
        """Takes the ids of the collected cases, each of which must be accounted for; some have no replay."""
        self._collected.update(case_ids)
        self.without_replay = self._collected.intersection(without_replay)
        self._accounts.update(dict.fromkeys(self.without_replay, WITHOUT_REPLAY))

    def count(self, report: pytest.TestReport, note: RowNote) -> None:
        """Accounts for the row of a report."""
        if outcome_of_report(report) == "xfailed":
            outcome = XFAILED
        elif "given_up" in note:
            outcome = GIVEN_UP
        elif "record" in note:
            outcome = str(note["record"]["status"])
        else:
            return
        self._account(case_id_in(report.nodeid), outcome, getattr(report, "node", None))

    def settle(self, records: Iterable[tuple[str, Record]]) -> None:
        """Accounts for rows with a record and without a report: the report was lost with its worker.

        Args:
            records: the records of the session, each with the end of the ids of its target.
        """
        if len(self._accounts) == len(self._collected):
            return
        for suffix, record in records:
            case_id = make_case_id(record.kernel_type, record.signature) + suffix
            if case_id in self._collected:
                self._accounts.setdefault(case_id, record.status.value)

    def counts(self) -> Counter[str]:
        """Returns the number of rows by outcome; the sum is the number of collected rows."""
        counts = Counter(self._accounts.values())
        not_run = len(self._collected) - len(self._accounts)
        if not_run:
            counts[NOT_RUN] = not_run
        return counts

    @property
    def to_run(self) -> int:
        """The number of collected rows that have a replay."""
        return len(self._collected) - len(self.without_replay)

    def not_run(self) -> list[str]:
        """Returns the ids of the rows that were collected and not run."""
        return sorted(self._collected.difference(self._accounts))

    def line(self) -> str:
        """Returns the counts as a sum: `195 rows collected = 193 measured + 2 failed`."""
        counts, unit = self.counts(), self._context.settings.unit
        terms = " + ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda entry: -entry[1]))
        # Numbers without commas: a script may add them up.
        return f"{counts.total()} {unit if counts.total() == 1 else f'{unit}s'} collected = {terms}"

    def unresolved(self) -> Counter[str]:
        """Returns the number of rows that an earlier session failed to measure and this one did not run, by status."""
        plan = self._context.plan
        before = plan.unresolved() if plan is not None else {}
        run = self._accounts.keys() - self.without_replay
        return Counter(status for case_id, status in before.items() if case_id not in run)

    def _account(self, case_id: str, outcome: str, reporter: Any) -> None:
        """`reporter` is the worker that ran the row. If the same worker runs the row again, the last run counts."""
        if case_id not in self._collected:
            self.problems.append(f"{case_id} was reported as {outcome}, but not collected")
        elif self._reporters.setdefault(case_id, reporter) is not reporter:
            self.problems.append(
                f"{case_id} was reported by two workers: as {self._accounts[case_id]}, then as {outcome}"
            )
        else:
            self._accounts[case_id] = outcome
