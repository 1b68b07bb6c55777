"""The plan of a session: which rows are cases.

`session_plan.py` makes the plan once, before the first row runs. No row becomes a case later, and every process of a
session has the same cases, even if a CSV file changes meanwhile. Until the rows are selected (`ReplaySession.select`)
these may change: `Plan.notes`, `Plan.error`, and the rows without a replay, which are known after the collection and
are cases in every update mode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from opatlas.combine.provenance import Staleness, StoredDuration
from opatlas.data.edited import EditedRows
from opatlas.data.op_mapping import WrittenMapping
from opatlas.data.write_back import RecoveredJournal
from opatlas.row.columns import (
    CACHE_STATE,
    CRASHES_IN_A_ROW,
    IMPLEMENTATION,
    INSTRUMENT,
    MICROBENCH_SAMPLES,
    RUN_ID,
    STATUS,
    Status,
)
from opatlas.row.signature import make_case_id, signature
from opatlas.text import parse_whole

#: Targets without a case that are still named one by one.
_FEW_TARGETS = 3


@dataclass(frozen=True)
class KnownFailure:
    """A case that an earlier session failed to measure.

    Attributes:
        reason: status and reason of the earlier session.
        run: whether the case is run again.
        strict: whether the case fails if it is not run; otherwise it is xfail.
    """

    reason: str
    run: bool
    strict: bool = False


class CaseRow:
    """One row as a case. The object refers to the plan and copies nothing, because there may be very many rows."""

    __slots__ = ("position", "table")

    def __init__(self, table: TablePlan, position: int) -> None:
        self.table = table
        self.position = position

    @property
    def target(self) -> int:
        """The number of the target that the row belongs to."""
        return self.table.target

    @property
    def kernel_type(self) -> str:
        return self.table.kernel_type

    @property
    def signature(self) -> str:
        return signature(self.kernel_type, self.cells)

    @property
    def cells(self) -> dict[str, str]:
        """The cells that identify the row and its call, by column."""
        return {name: cells[self.position] for name, cells in self.table.columns.items()}

    @property
    def row_id(self) -> str:
        """The id of the case without the end that tells its target: the same for all implementations of a row."""
        return self.table.cases[self.position].removesuffix(self.table.suffix)

    @property
    def first_run(self) -> bool:
        """Whether no earlier session ran the row."""
        return self.table.status(self.position) is None

    @property
    def given_up(self) -> str:
        """Why the row fails without being run; "" for a row that is run or xfail."""
        expected = self.table.known_failures.get(self.position)
        return expected.reason if expected is not None and expected.strict else ""

    @property
    def stored_us(self) -> float | None:
        """The replayed duration that the row had when the plan was made, in microseconds."""
        return self.table.measured.get(self.position)

    @property
    def captured_us(self) -> float | None:
        """The captured duration that the row had when the plan was made, in microseconds."""
        return self.table.captured.get(self.position)

    @property
    def stored_instrument(self) -> str:
        """The instrument of the replayed duration that the row had when the plan was made; "" if the row has none."""
        has_one = self.position in self.table.measured and INSTRUMENT in self.table.state
        return self.table.state[INSTRUMENT][self.position].strip() if has_one else ""

    @property
    def place(self) -> str:
        """File and line when the plan was made; only the file for a row that is not in the file yet."""
        is_there = self.position < self.table.rows_in_file
        return f"{self.table.path}:{self.position + 2}" if is_there else f"{self.table.path} (a new row)"

    def __repr__(self) -> str:
        return f"{self.kernel_type}[{self.signature}]"


@dataclass
class TablePlan:
    """The rows of one kernel type in the database of one target.

    Attributes:
        target: number of the target.
        suffix: the end of the ids of the cases; "" for the default implementation.
        rows_in_file: the number of rows in the file; later rows were named by options.
        columns: the cells that a replay needs, a list over all rows for each column.
        state: the cells that say what became of the row and how it was measured, likewise.
        columns_by_slug: all columns of the file, named as in --where.
        cases: ids of the cases, by position of the row.
        known_failures: the cases that are xfail, or fail without being run, by position.
        not_selected: ids of rows that --where does not select.
        left_out: ids of rows that --where selects and the update mode leaves out, by position.
        other_shards: positions of rows that belong to other shards.
        unresolved: statuses of the rows that an earlier session ran and failed to measure, by id.
        duplicates: positions of rows with the signature of an earlier row.
        measured_duplicates: positions of duplicates with a replayed duration, by the id of the earlier row.
        invalid_durations: duration cells without a valid duration, as "line: text".
        misspelt: sentences on columns whose names may be misspelt.
        measured: replayed durations in microseconds, by position.
        staleness: staleness of the replayed durations of selected rows, by id; only with --update-mode=stale.
        captured_only: ids of rows with a captured duration and no replayed duration.
        captured: captured durations of cases in microseconds, by position.
        captured_time_us: device time of all captured launches; None where the number of launches is unknown, or the
            tables of other kernel types were not read.
    """

    kernel_type: str
    path: Path
    rows_in_file: int
    columns: dict[str, list[str]]
    state: dict[str, list[str]] = field(default_factory=dict)
    columns_by_slug: frozenset[str] = frozenset()
    cases: dict[int, str] = field(default_factory=dict)
    known_failures: dict[int, KnownFailure] = field(default_factory=dict)
    not_selected: list[str] = field(default_factory=list)
    left_out: dict[int, str] = field(default_factory=dict)
    other_shards: list[int] = field(default_factory=list)
    unresolved: dict[str, str] = field(default_factory=dict)
    duplicates: list[int] = field(default_factory=list)
    measured_duplicates: dict[str, list[int]] = field(default_factory=dict)
    invalid_durations: list[str] = field(default_factory=list)
    misspelt: list[str] = field(default_factory=list)
    measured: dict[int, float] = field(default_factory=dict)
    staleness: dict[str, Staleness] = field(default_factory=dict)
    captured_only: set[str] = field(default_factory=set)
    captured: dict[int, float] = field(default_factory=dict)
    captured_time_us: float | None = 0.0
    target: int = 0
    suffix: str = ""

    @property
    def key(self) -> str:
        """The key of the table in `Plan.tables`."""
        return f"{self.kernel_type}{self.suffix}"

    def case_id(self, row_signature: str, row_digest: str = "") -> str:
        """Returns the id of a row by its signature."""
        return f"{make_case_id(self.kernel_type, row_signature, row_digest)}{self.suffix}"

    def status(self, position: int) -> Status | None:
        """Returns the status of the last session that ran a row; None if none did."""
        return Status.from_cell(self.state[STATUS][position]) if STATUS in self.state else None

    def run_id(self, position: int) -> str:
        """Returns the run that measured a row; "" where the row does not say."""
        return self.state[RUN_ID][position].strip() if RUN_ID in self.state else ""

    def crashes(self, position: int) -> int:
        """Returns the number of consecutive sessions in which a row crashed or timed out."""
        cell = self.state[CRASHES_IN_A_ROW][position] if CRASHES_IN_A_ROW in self.state else ""
        return parse_whole(cell) or 0

    def stored(self, selected: Container[str]) -> Iterator[StoredDuration]:
        """Yields the replayed durations that new durations of the selected cases would replace."""
        for position, case_id in self.cases.items():
            expected = self.known_failures.get(position)
            if case_id in selected and (expected is None or expected.run):
                if position in self.measured:
                    yield self._stored(position)
                yield from map(self._stored, self.measured_duplicates.get(case_id, ()))

    def _stored(self, position: int) -> StoredDuration:
        run_id, cache, instrument, samples, implementation = (
            self.state[name][position].strip() if name in self.state else ""
            for name in (RUN_ID, CACHE_STATE, INSTRUMENT, MICROBENCH_SAMPLES, IMPLEMENTATION)
        )
        place = f"{self.path.name}:{position + 2}"
        return StoredDuration(place, run_id, cache, instrument, parse_whole(samples), implementation)

    def admit(self, case_ids: Container[str] | None = None) -> None:
        """Makes cases of rows that the update mode left out; None: of all of them."""
        for position, case_id in list(self.left_out.items()):
            if case_ids is None or case_id in case_ids:
                self.cases[position] = self.left_out.pop(position)
                self.staleness.pop(case_id, None)

    def rows(self) -> Iterator[tuple[str, CaseRow, KnownFailure | None]]:
        """Yields the id of each case, its row, and its known failure."""
        for position, case_id in self.cases.items():
            yield case_id, CaseRow(self, position), self.known_failures.get(position)


@dataclass(frozen=True)
class PreparedDatabase:
    """What was done to a database before its plan was made.

    Attributes:
        problems: files of killed sessions that cannot be read.
        recovered: journals of killed sessions that were merged.
        starter_rows: rows of the starter database that was made; 0 if the database had rows.
        edited: rows that held the duration or the status of another shape.
        mapping: the op_mapping.yaml that was written; None if the database has one or needs none.
        rows_for: the implementation that rows were added for.
        rows_added: rows without durations that were added from another database.
        rows_from: that database; None for the starter database.
        taken_over: the killed session whose lock on the database was taken over; "" if there was none.
    """

    problems: Sequence[str] = ()
    recovered: Sequence[RecoveredJournal] = ()
    starter_rows: int = 0
    edited: EditedRows = field(default_factory=EditedRows)
    mapping: WrittenMapping | None = None
    rows_for: str = ""
    rows_added: int = 0
    rows_from: Path | None = None
    taken_over: str = ""


@dataclass
class Plan:
    """The cases of a session.

    Attributes:
        tables: the plan of each kernel type and target, by `TablePlan.key`; a file that cannot be read has none.
        problems: files that cannot be read; they make the session fail.
        prepared: what was done to each database first.
        notes: what the user should know about the durations in the database.
        error: why there is no plan; the session ends with this error before a row runs.
        error_status: the exit status of a session with an error.
        suffixes: the ends of the ids of cases, one for each target.
    """

    tables: dict[str, TablePlan] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    prepared: list[PreparedDatabase] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    error: str = ""
    error_status: pytest.ExitCode = pytest.ExitCode.USAGE_ERROR
    suffixes: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether the database has no file of a kernel type."""
        return not self.tables and not self.problems

    def tables_of(self, kernel_type: str) -> list[TablePlan]:
        """Returns the plans of a kernel type, in the order of the targets."""
        keys = (f"{kernel_type}{suffix}" for suffix in self.suffixes)
        return [self.tables[key] for key in keys if key in self.tables]

    def cases_by_target(self) -> Counter[int]:
        """Returns the number of cases of each target."""
        counts = Counter[int]()
        for table in self.tables.values():
            counts[table.target] += len(table.cases)
        return counts

    def named_targets(self, targets: int) -> list[int]:
        """Returns the numbers of the targets that a session names. Targets without cases are left out if they are many.

        Args:
            targets: number of targets of the session.
        """
        counts = self.cases_by_target()
        without = sum(not counts[number] for number in range(targets))
        return [number for number in range(targets) if counts[number] or without <= _FEW_TARGETS]

    def cases_of(self, kernel_types: Container[str]) -> int:
        """Returns the number of cases of some kernel types."""
        return sum(len(table.cases) for table in self.tables.values() if table.kernel_type in kernel_types)

    def without_rows(self) -> list[Path]:
        """Returns the files without a row."""
        return [table.path for table in self.tables.values() if not any(table.columns.values())]

    def invalid_durations(self) -> dict[str, list[str]]:
        """Returns the duration cells without a valid duration, by `TablePlan.key`."""
        return {key: table.invalid_durations for key, table in self.tables.items() if table.invalid_durations}

    def case_ids(self) -> set[str]:
        """Returns the ids of all cases."""
        return {case_id for table in self.tables.values() for case_id in table.cases.values()}

    def unreplayed(self) -> set[str]:
        """Returns the ids of the cases without a replayed duration."""
        return {
            case_id
            for table in self.tables.values()
            for position, case_id in table.cases.items()
            if position not in table.measured
        }

    def unresolved(self) -> dict[str, str]:
        """Returns the statuses of the rows that an earlier session ran and failed to measure, by id."""
        return {case_id: status for table in self.tables.values() for case_id, status in table.unresolved.items()}

    def captured_time_us(self) -> Mapping[str, float | None]:
        """Returns the device time of all captured launches, by kernel type; None where it is unknown.

        The default's database has the captures; the databases of other implementations have none.
        """
        default_last = sorted(self.tables.values(), key=lambda table: table.suffix, reverse=True)
        return {table.kernel_type: table.captured_time_us for table in default_last}

    def other_shards(self) -> int:
        """Returns the number of rows in other shards."""
        return sum(len(table.other_shards) for table in self.tables.values())

    def left_out(self) -> Counter[str]:
        """Returns the number of rows that the update mode leaves out, by `TablePlan.key`."""
        return Counter({key: len(table.left_out) for key, table in self.tables.items() if table.left_out})

    def add(self, other: Plan) -> None:
        """Adds the tables, problems and notes of the plan of another target."""
        self.tables |= other.tables
        self.suffixes += other.suffixes
        self.problems += other.problems
        self.notes += other.notes
        self.prepared += other.prepared
