"""Folds the rows of a source into a table, and finds the values that were dropped.

opatlas/data/fold.py has the rules. Besides durations, statuses and captures, empty cells of the target are filled from
the source: lengths of attention, and columns of other tools. Combining a table twice gives the same result as combining
it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

from opatlas.data.candidates import Candidate, FoldChanges, candidates_of_rows
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
    STATUS,
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


def final_conflicts(conflicts: Sequence[Conflict]) -> list[Conflict]:
    """Returns the conflicts of a table with several sources, with the final value of each cell, without duplicates.

    Args:
        conflicts: in the order in which the sources were combined.
    """
    kept = {conflict.cell: (conflict.kept, conflict.kept_run) for conflict in conflicts}
    found: dict[tuple[object, ...], Conflict] = {}
    for conflict in conflicts:
        content, run = kept[conflict.cell]
        key = (conflict.cell, conflict.dropped, conflict.dropped_run)
        if key not in found:
            is_final = (conflict.kept, conflict.kept_run) == (content, run)
            found[key] = conflict if is_final else replace(conflict, kept=content, kept_run=run)
    return list(found.values())


@dataclass
class CombineTally:
    """The changes of a table, by position of the row.

    Attributes:
        added: rows that the target lacked.
        taken: rows that have the source's duration now.
        kept: rows that keep their duration, although the source has an older or equal one.
        statuses: rows that have the source's status now, with the status.
        profiled: rows whose Profiling columns were filled.
        touched: rows of which such a cell changed, be it only the run of a status.
        filled: the number of other cells that were filled.
        conflicts: in the order of the column groups, then of the rows.
    """

    added: set[int] = field(default_factory=set)
    taken: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    statuses: dict[int, str] = field(default_factory=dict)
    profiled: set[int] = field(default_factory=set)
    touched: set[int] = field(default_factory=set)
    filled: int = 0
    conflicts: list[Conflict] = field(default_factory=list)

    @property
    def changed(self) -> bool:
        """Whether a row of the target changed, or was added."""
        return bool(self.added or self.touched or self.filled)


def combine_rows(fold: TableFold, source: RowTable, source_name: str) -> CombineTally:
    """Folds the rows of a source into a table in memory.

    Rows of the target keep their positions; missing rows follow in the order of the source. All rows of the target with
    one signature receive the same cells.

    Args:
        source_name: the name of the source in conflicts.
    """
    combination = _RowCombination(fold, source, source_name)
    combination.durations_and_statuses()
    combination.others()
    return combination.tally


def combine_records(fold: TableFold, candidates: Sequence[Candidate], source_name: str) -> CombineTally:
    """Folds the records of a journal into a table in memory. The arguments are as for `combine_rows`."""
    combination = _TableCombination(fold, source_name)
    at = [at for each in candidates if each.duration is not None for at in fold.positions.get(each.signature, ())]
    combination.tally.kept = {position for position in at if fold.has_duration(position)}
    combination.fold_candidates(candidates)
    return combination.tally


class _TableCombination:
    """The changes of a combination in progress."""

    def __init__(self, fold: TableFold, source_name: str) -> None:
        self.tally = CombineTally()
        self._fold = fold
        self._source_name = source_name

    def fold_candidates(self, candidates: Sequence[Candidate]) -> FoldChanges:
        """Folds durations, statuses and captures."""
        changes, tally = self._fold.fold(candidates), self.tally
        tally.added |= changes.appended
        tally.touched |= changes.changed
        tally.taken |= {at for at in changes.measured if at in changes.changed and at not in tally.added}
        tally.kept -= tally.taken
        tally.profiled |= changes.captured - tally.added
        tally.statuses |= {at: self._fold.rows[STATUS][at] for at in changes.statuses if at not in tally.added}
        column = row_kind(self._fold.kernel_type).duration_columns[0]
        for at, candidate, _, kept, dropped in changes.choices:
            if at not in changes.appended:
                cells = (kept.cells.get(column, ""), kept.run_id, dropped.cells.get(column, ""), dropped.run_id)
                tally.conflicts.append(self._conflict(at, candidate.signature, column, *cells))
        return changes

    def _conflict(
        self, at: int, name: str, what: str, kept: str, kept_run: str, dropped: str, dropped_run: str
    ) -> Conflict:
        shapes = self._fold.rows[INPUT_SHAPES][at]
        source = self._source_name
        return Conflict(self._fold.kernel_type, name, shapes, what, kept, kept_run, dropped, dropped_run, source)


class _RowCombination(_TableCombination):
    """Also compares the rows of the target with those of a source, of which most are equal."""

    def __init__(self, fold: TableFold, source: RowTable, source_name: str) -> None:
        super().__init__(fold, source_name)
        self._source = source
        self._target = fold.rows.table()
        positions = fold.positions
        self._missing = [of for of, name in enumerate(source.signatures) if name not in positions]
        pairs = [(at, of) for of, name in enumerate(source.signatures) for at in positions.get(name, ())]
        differs = self._differs(pairs)
        #: The positions in the target, by that in the source.
        self._differing: dict[int, list[int]] = {}
        for (at, of), is_other in zip(pairs, differs, strict=True):
            if is_other:
                self._differing.setdefault(of, []).append(at)
        # Of equal rows of the source the first fills other cells.
        first = self._source.by_signature
        same = ((at, of) for of, every in self._differing.items() for at in every)
        self._first_pairs = [(at, of) for at, of in same if first[source.signatures[of]] == of]
        known = ~np.isnan(source.replayed.us)
        self.tally.kept = {at for at, of in pairs if known[of] and fold.has_duration(at)}

    def _differs(self, pairs: Sequence[Pair]) -> list[bool]:
        """Returns which rows have another, non-empty cell in the source.

        Compares with Arrow: most combinations have few different cells.
        """
        found = np.zeros(len(pairs), dtype=bool)
        at, of = (position_array([pair[side] for pair in pairs]) for side in (0, 1))
        target, theirs_of = self._target.arrow, self._source.arrow.column
        for name in self._source.columns:
            if name in _SLOTS or name in POOLED:
                continue
            theirs = theirs_of(name).take(of)
            ours = target.column(name).take(at) if name in self._target.columns else ""
            other = pc.and_(pc.not_equal(ours, theirs), pc.not_equal(theirs, ""))
            found |= other.to_numpy()
        return list(found.tolist())

    def durations_and_statuses(self) -> None:
        """Folds durations, statuses and captures.

        Few rows at a time, because candidates take ten times the memory of cells; rows of one signature together.
        """
        signatures = self._source.signatures
        rows = sorted({*self._missing, *self._differing})
        of_signature = positions_by_key(signatures[row] for row in rows)
        batch: list[int] = []
        for positions in of_signature.values():
            batch += (rows[position] for position in positions)
            if len(batch) >= _ROWS_AT_A_TIME:
                self._fold_rows(batch)
                batch = []
        self._fold_rows(batch)

    def _fold_rows(self, rows: Sequence[int]) -> None:
        candidates = candidates_of_rows(self._source, rows)
        captured = self._unlike_captures(dict(zip(rows, candidates, strict=True)))
        changes = self.fold_candidates(candidates)
        self.tally.conflicts += [conflict for at, conflict in captured if at not in changes.captured]

    def _unlike_captures(self, candidates: dict[int, Candidate]) -> list[tuple[int, Conflict]]:
        """Returns the rows with other captured cells than the source, unless both have their samples."""
        found = []
        for at, candidate in ((at, each) for of, each in candidates.items() for at in self._differing.get(of, ())):
            theirs = candidate.captured
            if theirs is None or (self._fold.rows[PROFILING_RUN_ID][at] and theirs.get(PROFILING_RUN_ID, "")):
                continue
            unlike = [
                (name, ours, their)
                for name, their in theirs.items()
                if their and (ours := self._fold.rows[name][at]) and ours != their and not _same(ours, their)
            ]
            if unlike:
                what, ours, their = next((each for each in unlike if each[0] == PROFILING_AVERAGE), unlike[0])
                found.append((at, self._conflict(at, candidate.signature, what, ours, "", their, "")))
        return found

    def others(self) -> None:
        """Fills empty cells of other columns; records conflicts."""
        kind = row_kind(self._fold.kernel_type)
        for name in self._source.columns:
            if name in _SLOTS or name in POOLED or kind.is_measured(name) or is_profiling_column(name):
                continue
            theirs, filled = self._source.cells(name), 0
            for at, of in self._first_pairs:
                ours = self._fold.rows[name][at]
                if not theirs[of]:
                    continue
                if not ours:
                    self._fold.fill(at, {name: theirs[of]})
                    filled += 1
                elif not _same(ours, theirs[of]):
                    conflict = self._conflict(at, self._source.signatures[of], name, ours, "", theirs[of], "")
                    self.tally.conflicts.append(conflict)
            self.tally.filled += filled


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
