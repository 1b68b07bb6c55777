"""Cases of a capture into the CSVs of a database.

Only the profiling columns of rows that the capture has samples for change; counters that the
capture did not take at all (another metric group) keep what an earlier one gave. Everything else
stays to the letter: microbench columns, theory rows, unknown columns, the order of rows and columns.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import pandas as pd

from database.counts import add_counts
from database.editing import TableEdit, positions_by
from database.errors import OpAtlasError
from database.ingest.aggregate import CasesOfType, ProfiledCase
from database.ingest.attention import ATTENTION_TYPES, SOURCE_PROFILE
from database.schema import (
    AVERAGE,
    BASE,
    EP_SIZE,
    INPUT_SHAPES,
    INPUT_SLOTS,
    OUTPUT_SHAPES,
    OUTPUT_SLOTS,
    OWN,
    PIPE_UTILIZATION,
    PROFILING_AVERAGE,
    PROFILING_DURATIONS,
    PROFILING_MEDIAN,
    PROFILING_SAMPLES,
    PROFILING_STD,
    RUNTIME,
    in_contract_order,
    profiling_counter,
)
from database.signature import signatures
from database.statistics import cell, valid_duration
from database.store import Database, Table
from database.terminal import counted

RuntimeOf = Callable[[ProfiledCase], Mapping[str, str]]


@dataclass(frozen=True)
class DurationChange:
    """A row whose profiling average was another one before."""

    kernel_type: str
    shapes: str
    before_us: float
    after_us: float

    @property
    def distance(self) -> float:
        """How far apart the two are, as |log ratio|: twice and half as long are equally far."""
        return abs(math.log(self.after_us / self.before_us))


@dataclass
class Outcome:
    """What became of the cases: `new`, `updated` and `unchanged` count signatures."""

    new: int = 0
    updated: int = 0
    unchanged: int = 0
    kernel_types: list[str] = field(default_factory=list)
    changes: list[DurationChange] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def apply_cases(database: Database, cases: Mapping[str, CasesOfType], runtime_of: RuntimeOf) -> Outcome:
    """Brings the cases into the CSVs, one file after the other, each in one step.

    Args:
        cases: by kernel type.
        runtime_of: Runtime columns of a case (empty for most kernel types).

    Raises:
        OpAtlasError: the database cannot be locked or written at all. A single file that cannot be
            read or written is a problem of the outcome: it stays as it was, and the others go in.
    """
    outcome = Outcome()
    with database.lock():
        for kernel_type, of_type in cases.items():
            try:
                _apply_to_table(database, kernel_type, of_type, runtime_of, outcome)
            except OpAtlasError as error:
                outcome.problems.append(f"{error} (its {counted(len(of_type), 'case')} left out)")
    return outcome


def _apply_to_table(
    database: Database, kernel_type: str, cases: CasesOfType, runtime_of: RuntimeOf, outcome: Outcome
) -> None:
    path = database.csv_path(kernel_type)
    if path.exists():
        frame = database.read(kernel_type).frame
        rows = _Rows(kernel_type, frame, [str(name) for name in frame.columns])
    else:
        rows = _Rows(kernel_type, pd.DataFrame(), _columns_of_new_table(kernel_type))
    counts = Outcome()
    for case in cases:
        profiling, runtime = _profiling_cells(case), runtime_of(case)
        positions = rows.of_case(case)
        if not positions:
            rows.edit.append({**case.cells, **profiling, **runtime})
            counts.new += 1
            continue
        before_us = valid_duration(rows.edit[PROFILING_AVERAGE][positions[0]])
        changed = [rows.update(position, profiling, runtime) for position in positions]
        if any(changed):
            counts.updated += 1
        else:
            counts.unchanged += 1
        if before_us is not None and cell(before_us) != profiling[PROFILING_AVERAGE]:
            counts.changes.append(DurationChange(kernel_type, _shapes(case), before_us, case.durations.mean_us))
    if counts.new or counts.updated:
        database.write(Table(kernel_type, path, rows.edit.frame()))
    counts.kernel_types.append(kernel_type)
    add_counts(outcome, counts)


class _Rows:
    """The rows of a kernel type, and which of them a case's launches belong to."""

    def __init__(self, kernel_type: str, frame: pd.DataFrame, columns: Sequence[str]) -> None:
        """
        Args:
            frame: the rows that are there.
            columns: all columns of the table; a new one has columns, and a frame without any.
        """
        self.edit = TableEdit(frame, columns)
        self._exact = positions_by(signatures(kernel_type, frame))
        slots = [column for column in (*INPUT_SLOTS, *OUTPUT_SLOTS) if column in frame.columns]
        self._by_slots = positions_by(signatures(kernel_type, frame[slots]))

    def of_case(self, case: ProfiledCase) -> list[int]:
        """The rows that the case's launches belong to.

        A capture tells neither sequence lengths nor EP Size. Rows that have them are the case only
        if an earlier capture gave their profiling columns: fill-runtime made them of one captured
        row. A theory row that has them is a more special case than the capture can vouch for.
        """
        exact = self._exact.get(case.signature, [])
        if exact:
            return exact
        same_slots = self._by_slots.get(case.signature, [])
        return [at for at in same_slots if valid_duration(self.edit[PROFILING_AVERAGE][at]) is not None]

    def update(self, position: int, profiling: Mapping[str, str], runtime: Mapping[str, str]) -> bool:
        """Replaces the profiling cells of a row, and fills its empty Runtime cells; whether one changed."""
        new = {column: text for column, text in profiling.items() if self.edit[column][position] != text}
        for column, text in runtime.items():
            old = self.edit[column][position]
            # What fill-runtime found out stays; the profile that the durations came from is another one now.
            if text and text != old and (not old or column == SOURCE_PROFILE):
                new[column] = text
        for column, text in new.items():
            self.edit[column][position] = text
        return bool(new)


def _columns_of_new_table(kernel_type: str) -> list[str]:
    counters = [profiling_counter(name) for name in PIPE_UTILIZATION]
    columns = [*BASE, AVERAGE, *PROFILING_DURATIONS, *counters, *OWN]
    if kernel_type in ATTENTION_TYPES:
        columns += RUNTIME
    if kernel_type == "DispatchFFNCombine":
        columns.append(EP_SIZE)
    return in_contract_order(columns)


def _profiling_cells(case: ProfiledCase) -> dict[str, str]:
    durations = case.durations
    cells = {
        PROFILING_AVERAGE: cell(durations.mean_us),
        PROFILING_MEDIAN: cell(durations.median_us),
        PROFILING_STD: cell(durations.std_us),
        PROFILING_SAMPLES: str(durations.count),
    }
    for name, mean in case.counters.items():
        cells[profiling_counter(name)] = "" if mean is None else _counter_cell(mean)
    return cells


#: Counters are the same number over and over (0 for the half of a core that a kernel does not use).
_counter_cell = lru_cache(maxsize=4096)(cell)


def _shapes(case: ProfiledCase) -> str:
    return f"{case.cells[INPUT_SHAPES]} -> {case.cells[OUTPUT_SHAPES]}"
