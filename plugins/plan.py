"""The plan of a session: which rows are cases.

`session_plan.py` makes the plan once, before the first row runs. No row becomes a case later, and every process of a
session has the same cases, even if a CSV file changes meanwhile. Until the rows are selected (`ReplaySession.select`)
these may change: `Plan.notes`, `Plan.error`, and the rows without a replay, which are known after the collection and
are cases in every update mode.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pytest

from opatlas.arrays import Floats
from opatlas.data.comparable import Staleness, StoredDuration
from opatlas.data.edited import EditedRows
from opatlas.data.op_mapping import WrittenMapping
from opatlas.data.write_back import RecoveredJournal
from opatlas.row.columns import (
    BASE,
    CACHE_STATE,
    EP_SIZE,
    IMPLEMENTATION,
    INSTRUMENT,
    LEGACY_AVG_SEQ_LEN,
    MESSAGE,
    MICROBENCH_SAMPLES,
    RUN_ID,
    RUNTIME,
    SUITE,
    TASK,
)
from opatlas.row.signature import make_case_id, signature
from opatlas.row.table import FIRST_LINE, Row, RowTable
from opatlas.text import parse_whole

#: Columns that a replay may need.
_CALL = (*BASE, EP_SIZE, *RUNTIME, LEGACY_AVG_SEQ_LEN, *MESSAGE, *SUITE, *TASK)
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


class PlannedRow:
    """One row as a case. The object refers to the plan and copies nothing, because there may be very many rows."""

    __slots__ = ("plan", "position")

    def __init__(self, plan: CasesOfTable, position: int) -> None:
        self.plan = plan
        self.position = position

    @property
    def row(self) -> Row:
        """The row, as it was when the plan was made."""
        return self.plan.table.row(self.position)

    @property
    def target(self) -> int:
        """The number of the target that the row belongs to."""
        return self.plan.target

    @property
    def kernel_type(self) -> str:
        return self.plan.kernel_type

    @property
    def signature(self) -> str:
        return signature(self.kernel_type, self.cells)

    @property
    def cells(self) -> dict[str, str]:
        """The cells that identify the row and its call, by column."""
        return {name: cells[self.position] for name, cells in self.plan.call_cells.items()}

    @property
    def row_id(self) -> str:
        """The id of the case without the end that tells its target: the same for all implementations of a row."""
        return self.plan.cases[self.position].removesuffix(self.plan.suffix)

    @property
    def given_up(self) -> str:
        """Why the row fails without being run; "" for a row that is run or xfail."""
        expected = self.plan.known_failures.get(self.position)
        return expected.reason if expected is not None and expected.strict else ""

    @property
    def captured_us(self) -> float | None:
        """The captured duration that the row had when the plan was made, in microseconds."""
        return self.plan.captured_us(self.position)

    @property
    def place(self) -> str:
        """File and line when the plan was made; only the file for a row that is not in the file yet."""
        path, is_there = self.plan.table.path, self.position < self.plan.rows_in_file
        return f"{path}:{self.position + FIRST_LINE}" if is_there else f"{path} (a new row)"

    def __repr__(self) -> str:
        return f"{self.kernel_type}[{self.signature}]"


@dataclass
class CasesOfTable:
    """The cases among the rows of one kernel type in the database of one target.

    Attributes:
        table: the rows, as they were when the plan was made.
        rows_in_file: the number of rows in the file; later rows were named by options.
        cases: ids of the cases, by position of the row.
        known_failures: the cases that are xfail, or fail without being run, by position.
        not_selected: ids of rows that --where does not select, by position.
        left_out: ids of rows that --where selects and the update mode leaves out, by position.
        other_shards: positions of rows that belong to other shards.
        duplicates: ids of rows with the signature of an earlier row, by position.
        invalid_durations: duration cells without a valid duration, as "line: text".
        misspelt: sentences on columns whose names may be misspelt.
        staleness: staleness of the replayed durations of selected rows, by id; only with --update-mode=stale.
        captured: captured durations in microseconds, NaN for a row without one. Another database may have them.
        captured_time_us: device time of all captured launches; None where the number of launches is unknown, or the
            tables of other kernel types were not read.
    """

    table: RowTable
    rows_in_file: int = 0
    cases: dict[int, str] = field(default_factory=dict)
    known_failures: dict[int, KnownFailure] = field(default_factory=dict)
    not_selected: dict[int, str] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)
    other_shards: list[int] = field(default_factory=list)
    duplicates: dict[int, str] = field(default_factory=dict)
    invalid_durations: list[str] = field(default_factory=list)
    misspelt: list[str] = field(default_factory=list)
    staleness: dict[str, Staleness] = field(default_factory=dict)
    captured: Floats = field(default_factory=lambda: np.empty(0))
    captured_time_us: float | None = 0.0
    target: int = 0
    suffix: str = ""

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

    def case_id(self, row_signature: str, row_digest: str = "") -> str:
        """Returns the id of a row by its signature."""
        return f"{make_case_id(self.kernel_type, row_signature, row_digest)}{self.suffix}"

    def captured_us(self, position: int) -> float | None:
        """Returns the captured duration of a row in microseconds; None if it has none."""
        us = float(self.captured[position])
        return None if math.isnan(us) else us

    @property
    def has_captured(self) -> bool:
        """Whether a case has a captured duration."""
        return not np.isnan(self.captured[list(self.cases)]).all()

    @property
    def captured_only(self) -> set[str]:
        """The ids of left out rows with a duration, and without a replayed one."""
        replayed, *others = self.table.durations
        known = [~replayed.known & durations.known for durations in others]
        return {case_id for at, case_id in self.left_out.items() if any(each[at] for each in known)}

    @property
    def unresolved(self) -> dict[str, str]:
        """The statuses of the rows that an earlier session ran and failed to measure, by id."""
        statuses = self.table.statuses
        return {
            case_id: str(status)
            for at, case_id in sorted({**self.cases, **self.left_out, **self.not_selected}.items())
            if (status := statuses[at]) is not None and status.expected_to_fail
        }

    def stored(self, selected: Container[str]) -> Iterator[StoredDuration]:
        """Yields the replayed durations that new durations of the selected cases would replace."""
        replayed = self.table.replayed
        duplicates: dict[str, list[int]] = {}
        for position, case_id in self.duplicates.items():
            duplicates.setdefault(case_id, []).append(position)
        for position, case_id in self.cases.items():
            expected = self.known_failures.get(position)
            if case_id in selected and (expected is None or expected.run):
                for each in (position, *duplicates.get(case_id, ())):
                    if replayed.known[each]:
                        yield self._stored(self.table.row(each))

    def _stored(self, row: Row) -> StoredDuration:
        run_id, cache, instrument, samples, implementation = map(
            row.cell, (RUN_ID, CACHE_STATE, INSTRUMENT, MICROBENCH_SAMPLES, IMPLEMENTATION)
        )
        return StoredDuration(row.place, run_id, cache, instrument, parse_whole(samples), implementation)

    def admit(self, case_ids: Container[str] | None = None) -> None:
        """Makes cases of rows that the update mode left out; None: of all of them."""
        for position, case_id in list(self.left_out.items()):
            if case_ids is None or case_id in case_ids:
                self.cases[position] = self.left_out.pop(position)
                self.staleness.pop(case_id, None)

    def rows(self) -> Iterator[tuple[str, PlannedRow, KnownFailure | None]]:
        """Yields the id of each case, its row, and its known failure."""
        for position, case_id in self.cases.items():
            yield case_id, PlannedRow(self, position), self.known_failures.get(position)


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
        tables: the plan of each kernel type and target, by `CasesOfTable.key`; a file that cannot be read has none.
        problems: files that cannot be read; they make the session fail.
        prepared: what was done to each database first.
        notes: what the user should know about the durations in the database.
        error: why there is no plan; the session ends with this error before a row runs.
        error_status: the exit status of a session with an error.
        suffixes: the ends of the ids of cases, one for each target.
    """

    tables: dict[str, CasesOfTable] = field(default_factory=dict)
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

    def tables_of(self, kernel_type: str) -> list[CasesOfTable]:
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
        return [cases.table.path for cases in self.tables.values() if not len(cases.table)]

    def invalid_durations(self) -> dict[str, list[str]]:
        """Returns the duration cells without a valid duration, by `CasesOfTable.key`."""
        return {key: table.invalid_durations for key, table in self.tables.items() if table.invalid_durations}

    def case_ids(self) -> set[str]:
        """Returns the ids of all cases."""
        return {case_id for table in self.tables.values() for case_id in table.cases.values()}

    def unreplayed(self) -> set[str]:
        """Returns the ids of the cases without a replayed duration."""
        return {
            case_id
            for cases in self.tables.values()
            for position, case_id in cases.cases.items()
            if not cases.table.replayed.known[position]
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
        """Returns the number of rows that the update mode leaves out, by `CasesOfTable.key`."""
        return Counter({key: len(table.left_out) for key, table in self.tables.items() if table.left_out})

    def add(self, other: Plan) -> None:
        """Adds the tables, problems and notes of the plan of another target."""
        self.tables |= other.tables
        self.suffixes += other.suffixes
        self.problems += other.problems
        self.notes += other.notes
        self.prepared += other.prepared
