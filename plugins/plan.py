"""The plan of a session: which rows are cases, frozen before the first of them runs.

Every process of a session sees the same plan, whatever happens to the CSV files meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from database.case_id import case_id_of
from database.closest import closest
from database.edited import without_measurement
from database.errors import OpAtlasError, described
from database.header import misspelt
from database.measured import duration_columns
from database.merge import UpdateMode, has_duration
from database.numbers import whole
from database.provenance import Stored
from database.schema import (
    BASE,
    CACHE_STATE,
    CRASHES_IN_A_ROW,
    EP_SIZE,
    INSTRUMENT,
    MESSAGE,
    MICROBENCH_SAMPLES,
    PROFILING_AVERAGE,
    RUN_ID,
    RUNTIME,
    STATUS,
    STATUS_REASON,
    Status,
)
from database.signature import digest, signature, signatures
from database.statistics import valid_duration
from database.store import Database, Table, release_memory
from database.terminal import printable
from plugins.preparation import Prepared

#: Cells that a replay may need.
_CELLS = (*BASE, EP_SIZE, *RUNTIME, *MESSAGE)
_STATE = (STATUS, STATUS_REASON, CRASHES_IN_A_ROW, CACHE_STATE, INSTRUMENT, MICROBENCH_SAMPLES, RUN_ID)
#: A row that crashed or timed out in so many sessions in a row is not run again by itself: each time
#: costs a device process, and a row that hangs its whole deadline.
GIVEN_UP_AFTER = 2


@dataclass(frozen=True)
class Shard:
    """Part `index` of `count` of a collection, from 1."""

    index: int
    count: int

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"

    def holds(self, row_digest: str) -> bool:
        """Whether a row belongs to this part; it depends on nothing but the row."""
        return int(row_digest, 16) % self.count == self.index - 1


@dataclass(frozen=True)
class Choice:
    """Which rows of a database the user chose.

    Attributes:
        mode: whether rows with a valid duration are cases.
        ops: the only kernel types wanted; empty: all.
        shard: the only part of the rows wanted; None: all.
        retry_failed: whether rows are run that were given up.
    """

    mode: UpdateMode = UpdateMode.ALL
    ops: frozenset[str] = frozenset()
    shard: Shard | None = None
    retry_failed: bool = False


@dataclass(frozen=True)
class Expected:
    """Why a case is expected to fail, and whether it is run all the same."""

    reason: str
    run: bool


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
    def crashes_before(self) -> int:
        """Sessions in a row, up to the last one that ran the row, in which it crashed or timed out."""
        return self.table.crashes(self.position)

    @property
    def stored_us(self) -> float | None:
        """The replayed duration that the row had when the plan was made, in microseconds."""
        return self.table.measured.get(self.position)

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
        cases: positions of the rows that are cases, with the case's id.
        expected_to_fail: the cases that are xfail, by position.
        left_out: ids of rows that the update mode leaves out.
        other_shards: positions of rows that belong to other shards.
        unresolved: statuses of the rows that an earlier session ran and did not measure, by id.
        duplicates: positions of rows whose signature an earlier row has.
        measured_duplicates: positions of those that have a replayed duration, by the id of the earlier row.
        no_durations: duration cells that hold something else, as "line: text".
        misspelt: columns of the file that may be, as sentences.
        measured: replayed durations in microseconds, by the position of the row that has one.
        captured_only: ids of rows that have no replayed duration, and a captured one.
        has_captured: whether any case of a kernel has a captured duration.
    """

    kernel_type: str
    path: Path
    rows_in_file: int
    columns: dict[str, list[str]]
    state: dict[str, list[str]] = field(default_factory=dict)
    cases: dict[int, str] = field(default_factory=dict)
    expected_to_fail: dict[int, Expected] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    other_shards: list[int] = field(default_factory=list)
    unresolved: dict[str, str] = field(default_factory=dict)
    duplicates: list[int] = field(default_factory=list)
    measured_duplicates: dict[str, list[int]] = field(default_factory=dict)
    no_durations: list[str] = field(default_factory=list)
    misspelt: list[str] = field(default_factory=list)
    measured: dict[int, float] = field(default_factory=dict)
    captured_only: set[str] = field(default_factory=set)
    has_captured: bool = False

    def status(self, position: int) -> Status | None:
        """What became of a row the last time it was run; None if it never was."""
        return Status.of_cell(self.state[STATUS][position]) if STATUS in self.state else None

    def crashes(self, position: int) -> int:
        """Sessions in a row in which a row crashed or timed out; 0 where the cell holds no number."""
        cell = self.state[CRASHES_IN_A_ROW][position] if CRASHES_IN_A_ROW in self.state else ""
        return whole(cell) or 0

    def stored(self, selected: Container[str]) -> Iterator[Stored]:
        """The replayed durations that new ones of some cases are to replace."""
        for position, case_id in self.cases.items():
            expected = self.expected_to_fail.get(position)
            if case_id in selected and (expected is None or expected.run):
                if position in self.measured:
                    yield self._stored(position)
                yield from map(self._stored, self.measured_duplicates.get(case_id, ()))

    def _stored(self, position: int) -> Stored:
        run_id, cache, instrument, samples = (
            self.state[name][position].strip() if name in self.state else ""
            for name in (RUN_ID, CACHE_STATE, INSTRUMENT, MICROBENCH_SAMPLES)
        )
        place = f"{self.path.name}:{position + 2}"
        return Stored(place, run_id, cache, instrument, whole(samples))

    def rows(self) -> Iterator[tuple[str, CaseRow, Expected | None]]:
        """Each case's id, its row, and why it is expected to fail, if it is."""
        for position, case_id in self.cases.items():
            yield case_id, CaseRow(self, position), self.expected_to_fail.get(position)


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

    def without_duration(self) -> set[str]:
        """The ids of the cases that have no duration, replayed or captured: those of missing-only."""
        return {
            case_id
            for table in self.tables.values()
            for position, case_id in table.cases.items()
            if position not in table.measured and case_id not in table.captured_only
        }

    def unresolved(self) -> dict[str, str]:
        """Statuses of the rows that an earlier session ran and did not measure, by id."""
        return {case_id: status for table in self.tables.values() for case_id, status in table.unresolved.items()}

    def other_shards(self) -> int:
        """Rows that belong to other parts of the collection."""
        return sum(len(table.other_shards) for table in self.tables.values())

    def left_out(self) -> Counter[str]:
        """Rows that the mode leaves out, by kernel type."""
        return Counter({name: len(table.left_out) for name, table in self.tables.items() if table.left_out})


def make_plan(
    database: Database,
    chosen: Choice,
    *,
    sampled: Container[str] = (),
    messages: Mapping[str, Sequence[Mapping[str, str]]] | None = None,
    unmeasured: Mapping[str, Sequence[int]] | None = None,
) -> Plan:
    """Reads a database and decides which of its rows are cases; writes nothing.

    Args:
        database: where rows are, and are written back.
        chosen: what the user chose of them.
        sampled: kernel types that have samples already, so that they may be wanted and have no rows.
        messages: of a session that measures communication, the rows that it was asked for, by kernel type:
            these are the cases, in their order, whether or not the database has them.
        unmeasured: positions of rows, by kernel type, whose durations and statuses do not count.

    Raises:
        OpAtlasError: a kernel type that it lacks.
    """
    plan = Plan()
    names = database.kernel_types() if messages is None else list(messages)
    unknown = sorted(name for name in chosen.ops.difference(names) if name not in sampled)
    if unknown:
        meant = "".join(closest(name, names) for name in unknown)
        there = "" if meant else f"; it has {', '.join(names) or 'none'}"
        raise OpAtlasError(f"--ops {','.join(unknown)}: no such kernel type in {database.path}{meant}{there}")
    for name in names:
        if chosen.ops and name not in chosen.ops:
            continue
        try:
            table = _table(database, name, messages)
            wanted = None if messages is None else [signature(name, row) for row in messages[name]]
            if unmeasured and name in unmeasured:
                table.table.frame = without_measurement(name, table.table.frame, unmeasured[name])
            plan.tables[name] = _plan_table(table, wanted, chosen)
        except Exception as error:
            # Whatever is wrong with one file, the rows of the others run.
            place = database.path / f"{name}.csv"
            plan.problems.append(described(error, place, "its rows are left out; report this error with the file"))
    release_memory()
    return plan


@dataclass(frozen=True)
class _Rows:
    """The rows of a table, `in_file` of which are in its file."""

    table: Table
    in_file: int


def _table(database: Database, name: str, messages: Mapping[str, Sequence[Mapping[str, str]]] | None) -> _Rows:
    """What the file of a kernel type has, and then those messages that it lacks."""
    if messages is None:
        table = database.read(name)
        return _Rows(table, len(table.frame))
    path = database.csv_path(name)
    frame = database.read(name).frame if path.exists() else pd.DataFrame({column: [] for column in MESSAGE})
    there = set(signatures(name, frame))
    missing = [row for row in messages[name] if signature(name, row) not in there]
    together = pd.concat([frame, pd.DataFrame(missing)], ignore_index=True).fillna("") if missing else frame
    return _Rows(Table(name, path, together), len(frame))


def _plan_table(rows: _Rows, wanted: Sequence[str] | None, chosen: Choice) -> TablePlan:
    """`wanted` are the only rows that are cases, in this order; None: all, as they stand."""
    table = rows.table
    frame, kernel_type = table.frame, table.kernel_type
    columns, state = (
        {name: _shared(frame[name].tolist()) for name in names if name in frame.columns} for names in (_CELLS, _STATE)
    )
    own_duration, *_ = names = duration_columns(kernel_type)
    durations = {name: frame[name].tolist() for name in names if name in frame.columns}
    planned = TablePlan(kernel_type, table.path, rows.in_file, columns, state)
    planned.misspelt = misspelt(table.path, list(frame.columns), kernel_type)
    places = None if wanted is None else {row_signature: place for place, row_signature in enumerate(wanted)}
    place_of: dict[int, int] = {}
    seen: set[str] = set()
    for position, row_signature in enumerate(signatures(kernel_type, frame)):
        if places is not None:
            if row_signature not in places:
                continue
            place_of[position] = places[row_signature]
        row_digest = digest(kernel_type, row_signature)
        if chosen.shard is not None and not chosen.shard.holds(row_digest):
            planned.other_shards.append(position)
            continue
        case_id = case_id_of(kernel_type, row_signature, row_digest)
        if case_id in seen:
            planned.duplicates.append(position)
            if own_duration in durations and valid_duration(durations[own_duration][position]) is not None:
                planned.measured_duplicates.setdefault(case_id, []).append(position)
            continue
        seen.add(case_id)
        row = {name: cells[position] for name, cells in durations.items()}
        for name in durations:
            # Other tools write 0 for "not measured".
            if row[name].strip("0. ") and valid_duration(row[name]) is None:
                planned.no_durations.append(f"line {position + 2}, {name!r} = {row[name]!r}")
        status = planned.status(position)
        measured_us = valid_duration(row.get(own_duration, ""))
        if measured_us is not None:
            planned.measured[position] = measured_us
        elif has_duration(kernel_type, row):
            planned.captured_only.add(case_id)
        fails = status is not None and status.expected_to_fail
        if fails:
            planned.unresolved[case_id] = str(status)
        if chosen.mode is UpdateMode.MISSING_ONLY and has_duration(kernel_type, row):
            planned.left_out.append(case_id)
            continue
        planned.cases[position] = case_id
        if not planned.has_captured:
            planned.has_captured = valid_duration(row.get(PROFILING_AVERAGE, "")) is not None
        if fails:
            before = f"{status} before: {state[STATUS_REASON][position] if STATUS_REASON in state else ''}"
            given_up = planned.crashes(position) >= GIVEN_UP_AFTER and not chosen.retry_failed
            if given_up:
                before += f" ({planned.crashes(position)} sessions in a row; --retry-failed runs it again)"
            planned.expected_to_fail[position] = Expected(printable(before), run=not given_up)
    if place_of:
        ordered = sorted(planned.cases, key=place_of.__getitem__)
        planned.cases = {position: planned.cases[position] for position in ordered}
    return planned


def _shared(cells: list[str]) -> list[str]:
    """Equal cells as one object: most columns of a table repeat a few words."""
    known: dict[str, str] = {}
    return [known.setdefault(cell, cell) for cell in cells]
