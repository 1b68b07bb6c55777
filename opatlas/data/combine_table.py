"""Folds the rows of a source into a table, and finds the values that were dropped.

opatlas/data/fold.py has the rules. Besides durations, statuses and captures, empty cells of the target are filled from
the source: lengths of attention, and columns of other tools. Combining a table twice gives the same result as combining
it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from opatlas.arrays import Mask
from opatlas.data.candidates import Candidate, candidates_of_rows
from opatlas.data.cells import positions_by_key
from opatlas.data.csv_files import write_rows
from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.row.columns import (
    AVERAGE,
    DURATION,
    INPUT_SHAPES,
    INPUT_SLOTS,
    OUTPUT_SLOTS,
    POOLED,
    PROFILING_AVERAGE,
    PROFILING_RUN_ID,
    is_profiling_column,
)
from opatlas.row.communication import row_kind
from opatlas.row.quality import valid_duration
from opatlas.row.table import RowTable, position_array

#: Rows with equal signatures may spell their slots differently; the target's spelling stays.
_SLOTS = frozenset({*INPUT_SLOTS, *OUTPUT_SLOTS})
#: The position of a row in the target, and of the row with its signature in the source.
Pair = tuple[int, int]
_ROWS_AT_A_TIME = 4096


@dataclass(frozen=True)
class Conflict:
    """Two values of a row, of which one was dropped.

    Attributes:
        what: the column; the average stands for its whole group.
        kept, dropped: the cells.
        kept_run, dropped_run: the runs of durations; "" for other cells.
        source: the name of the source.
    """

    kernel_type: str
    signature: str
    input_shapes: str
    what: str
    kept: str
    kept_run: str
    dropped: str
    dropped_run: str
    source: str

    @cached_property
    def ratio(self) -> float | None:
        """The kept duration divided by the dropped one; None for other cells."""
        if self.what not in (AVERAGE, DURATION, PROFILING_AVERAGE):
            return None
        kept_us, dropped_us = valid_duration(self.kept), valid_duration(self.dropped)
        return None if kept_us is None or dropped_us is None else kept_us / dropped_us

    @property
    def cell(self) -> tuple[str, str, str]:
        """Kernel type, signature and column of the cell."""
        return self.kernel_type, self.signature, self.what

    @property
    def distance(self) -> float:
        """The ratio of two durations, at least 1: 2 for twice or half as long; 1 for other cells."""
        ratio = self.ratio or 1.0
        return max(ratio, 1 / ratio)


class TableCombination:
    """Folds the rows and records of sources into a table in memory, one source after the other.

    Rows of the target keep their positions; missing rows follow in the order of the sources. All rows of the target
    with one signature receive the same cells.

    Attributes:
        fold: the table.
        added: the positions of rows that the target lacked.
        taken: of its rows that have the duration of a source now.
        kept: of its rows that keep their duration, although a source has one.
        statuses: of its rows that have the status of a source now.
        profiled: of its rows whose Profiling columns were filled.
        filled: the number of other cells that were filled.
        changed: whether a cell changed, or a row was added.
    """

    def __init__(self, fold: TableFold) -> None:
        self.fold = fold
        self.added: set[int] = set()
        self.taken: set[int] = set()
        self.kept: set[int] = set()
        self.statuses: set[int] = set()
        self.profiled: set[int] = set()
        self.filled = 0
        self.changed = False
        self._conflicts: list[Conflict] = []
        self._column = row_kind(fold.kernel_type).duration_columns[0]

    def add_records(self, candidates: Sequence[Candidate], source_name: str) -> None:
        """Folds the records of a journal; `source_name` is the name of the source in conflicts."""
        fold = self.fold
        at = [at for each in candidates if each.duration is not None for at in fold.positions.get(each.signature, ())]
        self.kept |= {position for position in at if fold.has_duration(position)}
        self._fold_candidates(candidates, source_name)

    def add_rows(self, source: RowTable, source_name: str) -> None:
        """Folds the rows of a table, of which most are equal to those of the target."""
        fold, signatures = self.fold, source.signatures
        missing = {of for of, name in enumerate(signatures) if name not in fold.positions}
        pairs = [(at, of) for of, name in enumerate(signatures) for at in fold.positions.get(name, ())]
        known = source.replayed.known
        self.kept |= {at for at, of in pairs if known[of] and fold.has_duration(at)}
        differing = [
            pair for pair, differs in zip(pairs, _differ(fold.rows.table(), source, pairs), strict=True) if differs
        ]
        # Few rows at a time, because candidates take ten times the memory of cells; rows of one signature together.
        rows = sorted({*missing, *(of for _, of in differing)})
        batch: list[int] = []
        for positions in positions_by_key(signatures[row] for row in rows).values():
            batch += (rows[position] for position in positions)
            if len(batch) >= _ROWS_AT_A_TIME:
                self._fold_candidates(candidates_of_rows(source, batch), source_name)
                batch = []
        self._fold_candidates(candidates_of_rows(source, batch), source_name)
        self._compare_captured(source, differing, source_name)
        # Of equal rows of the source the first fills other cells.
        first = source.by_signature
        self._fill_others(source, [(at, of) for at, of in differing if first[signatures[of]] == of], source_name)

    def _fold_candidates(self, candidates: Sequence[Candidate], source_name: str) -> None:
        """Folds durations, statuses and captures."""
        changes = self.fold.fold(candidates)
        self.added |= changes.appended
        self.taken |= {at for at in changes.measured if at in changes.changed} - self.added
        self.kept -= self.taken
        self.profiled |= changes.captured - self.added
        self.statuses |= changes.statuses - self.added
        self.changed |= bool(changes.appended or changes.changed)
        for at, candidate, _, kept, dropped in changes.choices:
            if at not in changes.appended:
                cells = kept.cells.get(self._column, ""), kept.run_id
                dropped_cells = dropped.cells.get(self._column, ""), dropped.run_id
                self._add_conflict(at, candidate.signature, self._column, cells, dropped_cells, source_name)

    def _add_conflict(
        self, at: int, name: str, what: str, kept: tuple[str, str], dropped: tuple[str, str], source_name: str
    ) -> None:
        shapes = self.fold.rows[INPUT_SHAPES][at]
        self._conflicts.append(Conflict(self.fold.kernel_type, name, shapes, what, *kept, *dropped, source_name))

    @property
    def conflicts(self) -> list[Conflict]:
        """The conflicts with the final value of each cell, without duplicates."""
        kept = {each.cell: (each.kept, each.kept_run) for each in self._conflicts}
        found: dict[tuple[object, ...], Conflict] = {}
        for each in self._conflicts:
            content, run = kept[each.cell]
            found.setdefault((each.cell, each.dropped, each.dropped_run), replace(each, kept=content, kept_run=run))
        return list(found.values())

    def _compare_captured(self, source: RowTable, pairs: Sequence[Pair], source_name: str) -> None:
        """Adds a conflict for each row with other captured cells than the source, unless both have their samples."""
        rows = self.fold.rows
        # The average first: it stands for the group.
        names = sorted(filter(is_profiling_column, source.columns), key=lambda name: name != PROFILING_AVERAGE)
        samples = source.cells(PROFILING_RUN_ID)
        for at, of in pairs:
            if not (samples[of] and rows[PROFILING_RUN_ID][at]):
                cells = ((name, rows[name][at], source.cells(name)[of]) for name in names)
                unlike = next((each for each in cells if each[1] and each[2] and not _same(*each[1:])), None)
                if unlike is not None:
                    what, ours, theirs = unlike
                    self._add_conflict(at, source.signatures[of], what, (ours, ""), (theirs, ""), source_name)

    def _fill_others(self, source: RowTable, pairs: Sequence[Pair], source_name: str) -> None:
        """Fills empty cells of columns of no group; adds conflicts."""
        kind = row_kind(self.fold.kernel_type)
        for name in source.columns:
            if name in _SLOTS or name in POOLED or kind.is_measured(name) or is_profiling_column(name):
                continue
            cells = source.cells(name)
            for at, of in pairs:
                ours, theirs = self.fold.rows[name][at], cells[of]
                if theirs and not ours:
                    self.fold.fill(at, {name: theirs})
                    self.filled += 1
                    self.changed = True
                elif theirs and not _same(ours, theirs):
                    self._add_conflict(at, source.signatures[of], name, (ours, ""), (theirs, ""), source_name)


def _differ(target: RowTable, source: RowTable, pairs: Sequence[Pair]) -> Mask:
    """Returns which pairs of rows have another, non-empty cell in the source.

    Compares with Arrow: most combinations have few different cells.
    """
    found: Mask = np.zeros(len(pairs), dtype=bool)
    at, of = (position_array([pair[side] for pair in pairs]) for side in (0, 1))
    for name in source.columns:
        if name not in _SLOTS and name not in POOLED:
            theirs = source.arrow.column(name).take(of)
            ours = target.arrow.column(name).take(at) if name in target.columns else ""
            found |= pc.and_(pc.not_equal(ours, theirs), pc.not_equal(theirs, "")).to_numpy()
    return found


def _same(cell: str, other: str) -> bool:
    """Returns whether two cells are equal, except for quotes of a profiler and the form of numbers (`1.5`, `1.50`)."""
    cell, other = cell.strip('" '), other.strip('" ')
    if cell == other:
        return True
    try:
        return float(cell) == float(other)
    except ValueError:
        return False


_HEADER = (
    *("Kernel Type", "Signature", INPUT_SHAPES),
    *("What", "Kept", "Kept Run", "Dropped", "Dropped Run", "Ratio", "Source"),
)


def write_conflicts(database: Database, conflicts: Sequence[Conflict], at: float) -> Path | None:
    """Writes the list of conflicts to `reports/`; returns its path, or None without conflicts.

    Raises:
        OpAtlasError: the file cannot be written.
    """
    if not conflicts:
        return None
    path = database.new_report_path("combine_conflicts", at)
    write_rows(path, _HEADER, map(_cells, conflicts))
    return path


def _cells(conflict: Conflict) -> tuple[str, ...]:
    ratio = conflict.ratio
    return (
        *(conflict.kernel_type, conflict.signature, conflict.input_shapes, conflict.what),
        *(conflict.kept, conflict.kept_run, conflict.dropped, conflict.dropped_run),
        *("" if ratio is None else f"{ratio:.4f}", conflict.source),
    )
