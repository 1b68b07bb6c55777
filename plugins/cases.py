"""The cases of a session: each row of its databases, what the options do with it, and what became of it.

No other object of a session holds these facts: the plan's lines, the ledger, the causes, the figures and JUnit are
queries of the cases.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

import numpy as np
import pytest

from opatlas.data.comparable import Staleness
from opatlas.row import columns as col
from opatlas.row.quality import Floats
from opatlas.row.status import Status
from opatlas.row.table import FIRST_LINE, Row, RowTable
from opatlas.run.registry import replay_spec
from opatlas.show.row_summary import RowSummary

#: Accounts of collected rows beside the statuses.
NOT_RUN, XFAILED, WITHOUT_REPLAY, GIVEN_UP = "not run", "xfailed", "without a replay", "given up"

#: Columns that a replay may need.
_CALL = (
    *col.BASE,
    *col.EXPERTS,
    *col.RUNTIME,
    col.LEGACY_AVG_SEQ_LEN,
    *col.MESSAGE,
    *col.SUITE,
    *col.TASK,
    *col.STEP_COLUMNS,
)


class Fate(Enum):
    """What the options do with a row."""

    TO_RUN = "to run"
    LEFT_OUT = "left out by the update mode"
    NOT_SELECTED = "not selected by --where"
    OTHER_SHARD = "in another shard"
    REPEATED = "has the signature of an earlier row"


@dataclass(frozen=True)
class KnownFailure:
    """An earlier session failed to measure the row.

    Attributes:
        reason: status and reason of the earlier session.
        run: whether the row is run again.
        strict: whether the row fails if it is not run; otherwise it is xfail.
    """

    reason: str
    run: bool
    strict: bool = False


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What became of a row that was run, by pytest's last report of it.

    Attributes:
        word: pytest's word for the report.
        status, reason: of the record.
        figures: the numbers of a measured row.
        assumptions: about the row, if it was measured.
        verdict: the error class of a candidate; "" for a row without one.
        duration_us, stored_us: the duration that is stored, in microseconds, and with --read-only that of the database.
        began, ended: seconds since the epoch.
    """

    word: str
    status: Status
    reason: str
    figures: RowSummary | None
    assumptions: Sequence[str]
    verdict: str
    duration_us: float | None
    stored_us: float | None
    began: float
    ended: float


@dataclass(slots=True, eq=False)
class SessionCase:
    """One row of a target. The object refers to its table and copies nothing, because there may be very many rows.

    Attributes:
        rows: the rows of its kernel type and target.
        position: its place among these.
        id: the id of its test, the same for all rows of one signature and target.
        fate: what the options do with it.
        known_failure: what an earlier session met; None for a row that is run as if nothing were known.
        staleness: of its replayed duration, with --update-mode=stale.
        account: a status, or what else became of it; "" unless it is collected.
        result: what the last run of it gave; None before.
    """

    rows: CaseTable = field(repr=False)
    position: int
    id: str
    fate: Fate
    known_failure: KnownFailure | None = None
    staleness: Staleness | None = None
    account: str = ""
    result: CaseResult | None = None

    def __reduce__(self) -> tuple[object, ...]:
        # Workers of xdist get the plan: they know nothing of accounts and results.
        return SessionCase, (self.rows, self.position, self.id, self.fate, self.known_failure, self.staleness)

    @property
    def row(self) -> Row:
        """The row, as it was when the plan was made."""
        return self.rows.table.row(self.position)

    @property
    def target(self) -> int:
        """The number of the target that the row belongs to."""
        return self.rows.target

    @property
    def kernel_type(self) -> str:
        return self.rows.kernel_type

    @property
    def cells(self) -> dict[str, str]:
        """The cells that identify the row and its call, by column."""
        return {name: cells[self.position] for name, cells in self.rows.call_cells.items()}

    @property
    def row_id(self) -> str:
        """The id without the end that tells its target: the same for all implementations of a row."""
        return self.id.removesuffix(self.rows.suffix)

    @property
    def given_up(self) -> str:
        """Why the row fails without being run; "" for a row that is run or xfail."""
        known = self.known_failure
        return known.reason if known is not None and known.strict else ""

    @property
    def will_run(self) -> bool:
        """Whether the row is run where it is collected."""
        return self.known_failure is None or self.known_failure.run

    @property
    def is_replayed(self) -> bool:
        """Whether the row had a replayed duration when the plan was made."""
        return bool(self.rows.table.replayed.known[self.position])

    @property
    def is_captured_only(self) -> bool:
        """Whether the row has a duration, and no replayed one."""
        return not self.is_replayed and any(each.known[self.position] for each in self.rows.table.durations[1:])

    @property
    def unresolved(self) -> str:
        """The status of a row that an earlier session ran and failed to measure; "" for others."""
        status = self.row.status
        return status.value if status is not None and status.expected_to_fail else ""

    @property
    def captured_us(self) -> float | None:
        """The captured duration that the row had when the plan was made, in microseconds."""
        us = float(self.rows.captured[self.position])
        return None if math.isnan(us) else us

    @property
    def place(self) -> str:
        """File and line when the plan was made; only the file for a row that is not in the file yet."""
        path, is_there = self.rows.table.path, self.position < self.rows.rows_in_file
        return f"{path}:{self.position + FIRST_LINE}" if is_there else f"{path} (a new row)"


@dataclass
class CaseTable:
    """The rows of one kernel type in the database of one target, as they were when the plan was made.

    Attributes:
        table: the rows.
        rows_in_file: the number of rows in the file; later rows were named by options.
        target: number of the target.
        suffix: the end of the ids, which tells the target.
        label: the kernel type, and the implementation if the session has several.
        cases: a case for each row that the session is about.
        captured: captured durations in microseconds, NaN for a row without one. Another database may have them.
        captured_time_us: device time of all captured launches; None where the number of launches is unknown, or the
            tables of other kernel types were not read.
    """

    table: RowTable
    rows_in_file: int = 0
    target: int = 0
    suffix: str = ""
    label: str = ""
    cases: list[SessionCase] = field(default_factory=list)
    captured: Floats = field(default_factory=lambda: np.empty(0))
    captured_time_us: float | None = 0.0

    @property
    def kernel_type(self) -> str:
        return self.table.kernel_type

    @property
    def key(self) -> str:
        """The key of the table in `Plan.tables`."""
        return f"{self.kernel_type}{self.suffix}"

    @cached_property
    def call_cells(self) -> Mapping[str, list[str]]:
        """The cells that a replay may need, by column."""
        return {name: self.table.cells(name) for name in _CALL if name in self.table.columns}

    @property
    def to_run(self) -> list[SessionCase]:
        return of_fate(self.cases, Fate.TO_RUN)

    def admit(self) -> None:
        """Makes the rows run that the update mode left out: of rows that cannot be replayed no mode is done."""
        for case in of_fate(self.cases, Fate.LEFT_OUT):
            case.fate, case.staleness = Fate.TO_RUN, None


@dataclass
class Plan:
    """The rows of a session, which every process of it shares. It is made once, before the first row runs.

    No row is added later, and every process has the same rows, even if a CSV file changes meanwhile.

    Attributes:
        tables: by `CaseTable.key`; a file that cannot be read has none.
        ops: the kernel types that --ops names; empty: all.
        problems: files that cannot be read; they make the session fail.
        prepared: lines on what was done to the databases first.
        is_incomplete: whether records of a killed session could not be merged; it makes the session fail.
        notes: what the user should know about the durations in the database.
        error: why there is no plan; the session ends with this error before a row runs.
    """

    tables: dict[str, CaseTable] = field(default_factory=dict)
    ops: frozenset[str] = frozenset()
    problems: list[str] = field(default_factory=list)
    prepared: list[str] = field(default_factory=list)
    is_incomplete: bool = False
    notes: list[str] = field(default_factory=list)
    error: str = ""

    @cached_property
    def cases(self) -> list[SessionCase]:
        """The cases of all tables: the list of the session."""
        return [case for table in self.tables.values() for case in table.cases]

    def tables_of(self, kernel_type: str) -> list[CaseTable]:
        """Returns the tables of a kernel type, in the order of the targets."""
        return [table for table in self.tables.values() if table.kernel_type == kernel_type]

    def captured_time_us(self) -> Mapping[str, float | None]:
        """Returns the device time of all captured launches, by kernel type; None where it is unknown.

        The default's database has the captures; the databases of other implementations have none.
        """
        default_last = sorted(self.tables.values(), key=lambda table: table.suffix, reverse=True)
        return {table.kernel_type: table.captured_time_us for table in default_last}

    def add(self, other: Plan) -> None:
        """Adds the plan of another target."""
        self.tables |= other.tables
        self.ops |= other.ops
        self.problems += other.problems
        self.notes += other.notes
        # A killed session may have had several of the databases.
        self.prepared += [line for line in other.prepared if line not in self.prepared]
        self.is_incomplete |= other.is_incomplete


def row_of(item: pytest.Item) -> SessionCase | None:
    """Returns the case of an item; None for other tests."""
    callspec = getattr(item, "callspec", None)
    row = getattr(item, "row", None) if callspec is None else callspec.params.get("row")
    return row if isinstance(row, SessionCase) else None


def will_run(item: pytest.Item) -> bool:
    """Returns whether pytest will run an item that is a row, unless one of its fixtures refuses."""
    row = row_of(item)
    if row is None or row.given_up or item.get_closest_marker("skip"):
        return False
    return all(mark.kwargs.get("run", True) for mark in item.iter_markers("xfail"))


def needs_group(item: pytest.Item) -> bool:
    """Returns whether an item is a row that needs several devices at once."""
    spec = replay_spec(getattr(item, "function", None))
    return spec is not None and spec.group is not None


def of_fate(cases: Iterable[SessionCase], fate: Fate) -> list[SessionCase]:
    """Returns the cases of a fate."""
    return [case for case in cases if case.fate is fate]


def ledger(cases: Iterable[SessionCase]) -> Counter[str]:
    """Returns the number of collected rows by what became of them; the sum is the number of collected rows."""
    return Counter(case.account for case in cases if case.account)


def ledger_line(cases: Iterable[SessionCase], unit: str) -> str:
    """Returns the ledger as a sum: `195 rows collected = 193 measured + 2 failed`."""
    counts = ledger(cases)
    terms = " + ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda entry: -entry[1]))
    # Numbers without commas: a script may add them up.
    return f"{counts.total()} {unit if counts.total() == 1 else f'{unit}s'} collected = {terms}"


def unresolved(cases: Iterable[SessionCase]) -> Counter[str]:
    """Returns the number of rows that an earlier session failed to measure and this one did not run, by status."""
    idle = [case for case in cases if case.fate is not Fate.OTHER_SHARD and case.fate is not Fate.REPEATED]
    idle = [case for case in idle if case.account in ("", NOT_RUN, WITHOUT_REPLAY)]
    return Counter(dict(Counter(status for case in idle if (status := case.unresolved)).most_common()))


def results_of(cases: Iterable[SessionCase]) -> Iterator[tuple[SessionCase, CaseResult]]:
    """Yields the cases that were run, with their results."""
    return ((case, case.result) for case in cases if case.result is not None)


def figures_of(cases: Iterable[SessionCase]) -> dict[str, RowSummary]:
    """Returns the numbers of measured rows, by case id."""
    return {case.id: found.figures for case, found in results_of(cases) if found.figures is not None}
