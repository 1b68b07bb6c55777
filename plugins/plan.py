"""The plan of a session: which rows are cases, frozen before the first of them runs.

Every process of a session sees the same plan, whatever happens to the CSV files meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from opatlas.combine.provenance import Staleness, StoredDuration
from opatlas.model.schema import (
    CACHE_STATE,
    CRASHES_IN_A_ROW,
    INSTRUMENT,
    MICROBENCH_SAMPLES,
    RUN_ID,
    STATUS,
    Status,
)
from opatlas.model.signature import signature
from opatlas.store.history import EditedRows
from opatlas.store.op_mapping import WrittenMapping
from opatlas.store.write_back import RecoveredJournal
from opatlas.text import whole


@dataclass(frozen=True)
class Expected:
    """A case that failed before.

    Attributes:
        reason: what became of it.
        run: whether it is run all the same.
        strict: whether it fails, instead of being xfail, where it is not run.
    """

    reason: str
    run: bool
    strict: bool = False


class CaseRow:
    """One row as a case: a reference into the plan, made small because there are many."""

    __slots__ = ("position", "table")

    def __init__(self, table: TablePlan, position: int) -> None:
        self.table = table
        self.position = position

    @property
    def kernel_type(self) -> str:
        return self.table.kernel_type

    @property
    def signature(self) -> str:
        return signature(self.kernel_type, self.cells)

    @property
    def cells(self) -> dict[str, str]:
        """The cells that identify the row and its call."""
        return {name: cells[self.position] for name, cells in self.table.columns.items()}

    @property
    def first_run(self) -> bool:
        """Whether no session has run the row before."""
        return self.table.status(self.position) is None

    @property
    def given_up(self) -> str:
        """Why the row fails without being run; "" for a row that is run, or xfail."""
        expected = self.table.expected_to_fail.get(self.position)
        return expected.reason if expected is not None and expected.strict else ""

    @property
    def crashes_before(self) -> int:
        """Sessions in a row, up to the last one that ran the row, in which it crashed or timed out."""
        return self.table.crashes(self.position)

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
        """What took the replayed duration that the row had when the plan was made; "" if the row does not say."""
        has_one = self.position in self.table.measured and INSTRUMENT in self.table.state
        return self.table.state[INSTRUMENT][self.position].strip() if has_one else ""

    @property
    def place(self) -> str:
        """File and line, as they were when the plan was made; the file alone for a row that is not in it yet."""
        is_there = self.position < self.table.rows_in_file
        return f"{self.table.path}:{self.position + 2}" if is_there else f"{self.table.path} (a new row)"

    def __repr__(self) -> str:
        return f"{self.kernel_type}[{self.signature}]"


@dataclass
class TablePlan:
    """The rows of one kernel type.

    Attributes:
        rows_in_file: how many rows the file had; what comes after them was asked for, and is not in it.
        columns: cells of every row, by column: those that a replay needs.
        state: the same, of the columns that tell what became of the row, and how it was measured.
        columns_by_slug: all columns of the file, as --where names them.
        cases: positions of the rows that are cases, with the case's id.
        expected_to_fail: the cases that are xfail, or fail without being run, by position.
        not_selected: ids of rows that --where does not select.
        left_out: ids of rows that these select, and the update mode leaves out.
        other_shards: positions of rows that belong to other shards.
        unresolved: statuses of the rows that an earlier session ran and did not measure, by id.
        duplicates: positions of rows whose signature an earlier row has.
        measured_duplicates: positions of those that have a replayed duration, by the id of the earlier row.
        no_durations: duration cells that hold something else, as "line: text".
        misspelt: columns of the file that may be, as sentences.
        measured: replayed durations in microseconds, by the position of the row that has one.
        staleness: of the replayed durations of the rows that are selected, by id, where the update mode asks for it.
        captured_only: ids of rows that have no replayed duration, and a captured one.
        captured: captured durations of cases in microseconds, by the position of the row that has one.
        captured_time_us: device time of all captured launches; None where their number is not known, or the tables of
            other kernel types were not read.
    """

    kernel_type: str
    path: Path
    rows_in_file: int
    columns: dict[str, list[str]]
    state: dict[str, list[str]] = field(default_factory=dict)
    columns_by_slug: frozenset[str] = frozenset()
    cases: dict[int, str] = field(default_factory=dict)
    expected_to_fail: dict[int, Expected] = field(default_factory=dict)
    not_selected: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    other_shards: list[int] = field(default_factory=list)
    unresolved: dict[str, str] = field(default_factory=dict)
    duplicates: list[int] = field(default_factory=list)
    measured_duplicates: dict[str, list[int]] = field(default_factory=dict)
    no_durations: list[str] = field(default_factory=list)
    misspelt: list[str] = field(default_factory=list)
    measured: dict[int, float] = field(default_factory=dict)
    staleness: dict[str, Staleness] = field(default_factory=dict)
    captured_only: set[str] = field(default_factory=set)
    captured: dict[int, float] = field(default_factory=dict)
    captured_time_us: float | None = 0.0

    def status(self, position: int) -> Status | None:
        """What became of a row the last time it was run; None if it never was."""
        return Status.of_cell(self.state[STATUS][position]) if STATUS in self.state else None

    def run_id(self, position: int) -> str:
        """The run that measured a row; "" where the row does not say."""
        return self.state[RUN_ID][position].strip() if RUN_ID in self.state else ""

    def crashes(self, position: int) -> int:
        """Sessions in a row in which a row crashed or timed out; 0 where the cell holds no number."""
        cell = self.state[CRASHES_IN_A_ROW][position] if CRASHES_IN_A_ROW in self.state else ""
        return whole(cell) or 0

    def stored(self, selected: Container[str]) -> Iterator[StoredDuration]:
        """The replayed durations that new ones of some cases are to replace."""
        for position, case_id in self.cases.items():
            expected = self.expected_to_fail.get(position)
            if case_id in selected and (expected is None or expected.run):
                if position in self.measured:
                    yield self._stored(position)
                yield from map(self._stored, self.measured_duplicates.get(case_id, ()))

    def _stored(self, position: int) -> StoredDuration:
        run_id, cache, instrument, samples = (
            self.state[name][position].strip() if name in self.state else ""
            for name in (RUN_ID, CACHE_STATE, INSTRUMENT, MICROBENCH_SAMPLES)
        )
        place = f"{self.path.name}:{position + 2}"
        return StoredDuration(place, run_id, cache, instrument, whole(samples))

    def rows(self) -> Iterator[tuple[str, CaseRow, Expected | None]]:
        """Each case's id, its row, and why it is expected to fail, if it is."""
        for position, case_id in self.cases.items():
            yield case_id, CaseRow(self, position), self.expected_to_fail.get(position)


@dataclass(frozen=True)
class Prepared:
    """What was found, and seen to.

    Attributes:
        problems: what killed sessions left behind and cannot be read yet.
        recovered: what they left behind and was merged.
        starter_rows: rows of the starter database that was made, 0 if there was one.
        edited: rows that held the duration or the status of another shape.
        mapping: the op_mapping.yaml that the database got.
    """

    problems: Sequence[str] = ()
    recovered: Sequence[RecoveredJournal] = ()
    starter_rows: int = 0
    edited: EditedRows = field(default_factory=EditedRows)
    mapping: WrittenMapping | None = None


@dataclass
class Plan:
    """What a session is to do.

    Attributes:
        tables: by kernel type; a file that cannot be read has none.
        problems: files that cannot be read; they make the session fail.
        prepared: what was done to the database first.
        taken_over: the killed session whose lock on the database was taken over; "" if there was none.
        notes: what the user should know of the durations that the database holds.
        error: why there is no plan; the session ends with it before anything runs.
    """

    tables: dict[str, TablePlan] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    prepared: Prepared = field(default_factory=Prepared)
    taken_over: str = ""
    notes: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the database has no file of a kernel type."""
        return not self.tables and not self.problems

    def cases_of(self, kernel_types: Container[str]) -> int:
        """How many rows of some kernel types are cases."""
        return sum(len(table.cases) for name, table in self.tables.items() if name in kernel_types)

    def without_rows(self) -> list[Path]:
        """Files that hold no row."""
        return [table.path for table in self.tables.values() if not any(table.columns.values())]

    def no_durations(self) -> dict[str, list[str]]:
        """Duration cells that hold something else, by kernel type."""
        return {name: table.no_durations for name, table in self.tables.items() if table.no_durations}

    def case_ids(self) -> set[str]:
        """The ids of all cases."""
        return {case_id for table in self.tables.values() for case_id in table.cases.values()}

    def unreplayed(self) -> set[str]:
        """The ids of the cases that have no replayed duration."""
        return {
            case_id
            for table in self.tables.values()
            for position, case_id in table.cases.items()
            if position not in table.measured
        }

    def unresolved(self) -> dict[str, str]:
        """Statuses of the rows that an earlier session ran and did not measure, by id."""
        return {case_id: status for table in self.tables.values() for case_id, status in table.unresolved.items()}

    def captured_time_us(self) -> Mapping[str, float | None]:
        """Device time of all captured launches, by kernel type; None where no share of it can be told."""
        return {name: table.captured_time_us for name, table in self.tables.items()}

    def other_shards(self) -> int:
        """Rows that belong to other parts of the collection."""
        return sum(len(table.other_shards) for table in self.tables.values())

    def left_out(self) -> Counter[str]:
        """Rows that the mode leaves out, by kernel type."""
        return Counter({name: len(table.left_out) for name, table in self.tables.items() if table.left_out})
