"""Combines one table with another: which cells rows take, keep and fill, and the conflicts.

Columns belong to groups. A group moves as a whole, so that no row mixes two measurements:

duration    Average Duration(us), MicroBench *, Cache State, Instrument, Run ID: of the newest run with a valid duration
status      Status, Status Reason, Crashes In A Row, what a judged kernel got: of the newest run with a status
profiling   Profiling *: the target's, or the source's if the target has none; recomputed afterwards from all samples
            where both databases have them
pooled      Pooled *: the target's; opatlas/combine/pool.py computes them
others      cell by cell: the target's, or the source's if the target's is empty

Combining a table twice gives the same result as combining it once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from opatlas.data.cells import TableEdit
from opatlas.data.manifest import Age, RunOrder
from opatlas.data.row_update import split_later_run, with_later_run
from opatlas.row.columns import (
    AVERAGE,
    CRASHES_IN_A_ROW,
    INPUT_SHAPES,
    INPUT_SLOTS,
    JUDGED,
    OUTPUT_SLOTS,
    POOLED,
    PROFILING_AVERAGE,
    PROFILING_RUN_ID,
    RUN_ID,
    STATUS,
    STATUS_GROUP,
    STATUS_REASON,
    Status,
    insert_columns,
    is_microbench_column,
)
from opatlas.row.quality import valid_duration
from opatlas.row.signature import signatures

_TEXT = pa.large_string()
_PROFILING = "Profiling "
#: Rows with equal signatures may spell their slots differently; the target's spelling stays.
_SLOTS = (*INPUT_SLOTS, *OUTPUT_SLOTS)
#: Columns that `others` skips, besides columns with a prefix.
_OF_OTHER_GROUPS = frozenset({*STATUS_GROUP, *POOLED, *_SLOTS})
#: The position of a row in the target, and of the row with its signature in the source.
Pair = tuple[int, int]


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
        if self.what not in (AVERAGE, PROFILING_AVERAGE):
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
        added: the number of rows that the target lacked.
        taken: rows that have the source's duration now.
        kept: rows that keep their duration, although the source has an older or equal one.
        statuses: rows that have the source's status now, with the status.
        profiled: rows whose Profiling columns were filled.
        filled: the number of other cells that were filled.
        conflicts: in the order of the column groups, then of the rows.
        replaced: rows whose duration was replaced by a newer one.
        dropped: positions in the source of rows whose duration was not taken.
    """

    added: int = 0
    taken: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)
    statuses: dict[int, str] = field(default_factory=dict)
    profiled: set[int] = field(default_factory=set)
    filled: int = 0
    conflicts: list[Conflict] = field(default_factory=list)
    replaced: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)

    @property
    def edited(self) -> bool:
        """Whether a row of the target changed."""
        return bool(self.taken or self.statuses or self.profiled or self.filled)


@dataclass(frozen=True)
class CombinedTable:
    """A combined table, and its changes."""

    frame: pd.DataFrame
    tally: CombineTally


def combine_tables(
    kernel_type: str, target: pd.DataFrame, source: pd.DataFrame, order: RunOrder, source_name: str
) -> CombinedTable:
    """Combines two tables into a new one.

    Rows of the target keep their positions; missing rows follow in the order of the source. All rows of the target with
    one signature receive the same cells. Of several rows of the source with one signature, the row with the newest
    valid duration counts.

    Args:
        target, source: text cells of rows of one kernel type.
        order: the order of runs.
        source_name: the name of the source in conflicts.
    """
    combination = _Combination(kernel_type, target, source, order, source_name)
    combination.durations_and_statuses()
    combination.profiling()
    combination.others()
    frame = combination.rows.frame() if combination.tally.edited else target
    return CombinedTable(
        _with_rows(frame, source.iloc[combination.missing]) if combination.missing else frame, combination.tally
    )


def _with_rows(frame: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Returns `frame` with `rows` appended, and with the non-empty columns of `rows` inserted at their groups."""
    columns = insert_columns(list(frame.columns), [name for name in rows.columns if rows[name].any()])
    parts = [part.reindex(columns=columns, fill_value="") for part in (frame, rows)]
    together: pd.DataFrame = pd.concat(parts, ignore_index=True)
    return together


class _RowStatus(NamedTuple):
    """The status of a row, its run, and the reason without the run."""

    run: str
    status: str
    reason: str


class _Combination:
    """A combination in progress.

    Attributes:
        rows: the rows of the target.
        missing: positions in the source of rows that the target lacks.
        tally: the changes so far.
    """

    def __init__(
        self, kernel_type: str, target: pd.DataFrame, source: pd.DataFrame, order: RunOrder, source_name: str
    ) -> None:
        self.rows = TableEdit(target)
        self.missing: list[int] = []
        self.tally = CombineTally()
        self._theirs = TableEdit(source)
        self._kernel_type = kernel_type
        self._target, self._source = target, source
        self._columns = list(dict.fromkeys(map(str, [*target.columns, *source.columns])))
        self._age = order.age
        self._source_name = source_name
        self._signatures = signatures(kernel_type, target)
        self._pairs: list[Pair] = []
        chosen = self._newest(signatures(kernel_type, source))
        matched = set()
        for at, signature in enumerate(self._signatures):
            of = chosen.get(signature)
            if of is not None:
                self._pairs.append((at, of))
                matched.add(of)
        self.missing = sorted(of for of in chosen.values() if of not in matched)
        self.tally.added = len(self.missing)

    def _newest(self, source_signatures: Sequence[str]) -> dict[str, int]:
        """Returns the position of the row with the newest valid duration, by signature."""
        durations, runs = self._theirs[AVERAGE], self._theirs[RUN_ID]

        def sort_key(of: int) -> tuple[bool, Age]:
            return valid_duration(durations[of]) is not None, self._age(runs[of])

        chosen: dict[str, int] = {}
        for of, signature in enumerate(source_signatures):
            first = chosen.setdefault(signature, of)
            if first != of and sort_key(of) > sort_key(first):
                chosen[signature] = of
        return chosen

    def durations_and_statuses(self) -> None:
        """Takes newer durations and statuses; the column of the status's run depends on whether there is a duration."""
        # Read before the durations move, because Run ID moves with a duration.
        ours, theirs = _row_statuses(self.rows), _row_statuses(self._theirs)
        newer = self._newer_durations()
        self._move([name for name in self._columns if is_microbench_column(name)], newer)
        self.tally.taken = {at for at, _ in newer}
        self._write_runs((at, ours[at]) for at, _ in newer)
        fresh = [(at, of) for at, of in self._pairs if self._status_key(theirs[of]) > self._status_key(ours[at])]
        before = self._status_cells(fresh)
        self._move((STATUS, CRASHES_IN_A_ROW, *JUDGED), fresh)
        self._write_runs((at, theirs[of]) for at, of in fresh)
        after = self._status_cells(fresh)
        rows = zip(fresh, before, after, strict=True)
        self.tally.statuses = {at: now[0] for (at, _), was, now in rows if was != now}

    def _newer_durations(self) -> list[Pair]:
        """Returns the pairs whose duration is taken from the source; records conflicts."""
        durations, runs = self.rows[AVERAGE], self.rows[RUN_ID]
        their_durations, their_runs = self._theirs[AVERAGE], self._theirs[RUN_ID]
        newer = []
        for at, of in self._pairs:
            their_us = valid_duration(their_durations[of])
            if their_us is None:
                continue
            our_us = valid_duration(durations[at])
            run, their_run = runs[at], their_runs[of]
            take = our_us is None or self._age(their_run) > self._age(run)
            if take:
                newer.append((at, of))
            else:
                self.tally.kept.add(at)
            # Without a run id, different durations are different measurements.
            if our_us is not None and (run != their_run or (not run and our_us != their_us)):
                ours, theirs = (durations[at], run), (their_durations[of], their_run)
                self._conflict(at, AVERAGE, *(theirs if take else ours), *(ours if take else theirs))
                if take:
                    self.tally.replaced.append(at)
                else:
                    self.tally.dropped.append(of)
        return newer

    def _status_key(self, verdict: _RowStatus | None) -> tuple[Age, int]:
        """Returns a sort key, newer is greater; within a run, "measured" is the greatest."""
        if verdict is None:
            return self._age(""), 0
        return self._age(verdict.run), 2 if _is_measured(verdict.status) else bool(verdict.status)

    def _status_cells(self, pairs: Sequence[Pair]) -> list[tuple[str, ...]]:
        columns = [self.rows[name] for name in (*STATUS_GROUP, RUN_ID)]
        return [tuple([column[at] for column in columns]) for at, _ in pairs]

    def _write_runs(self, verdicts: Iterable[tuple[int, _RowStatus | None]]) -> None:
        """Writes reason and run of statuses; Run ID belongs to the duration if there is one."""
        durations, reasons, runs = self.rows[AVERAGE], self.rows[STATUS_REASON], self.rows[RUN_ID]
        for at, verdict in verdicts:
            if verdict is None:
                continue
            reason = verdict.reason
            if valid_duration(durations[at]) is None:
                runs[at] = verdict.run
            elif verdict.run and verdict.status and not _is_measured(verdict.status):
                reason = with_later_run(reason, verdict.run)
            reasons[at] = reason

    def profiling(self) -> None:
        """Fills missing Profiling groups; records conflicts."""
        group = [name for name in self._columns if name.startswith(_PROFILING)]
        differing = self._differing_pairs([name for name in group if name in self._source.columns])
        ours = _cells(self._target, group, [at for at, _ in differing])
        theirs = _cells(self._source, group, [of for _, of in differing])
        run = group.index(PROFILING_RUN_ID) if PROFILING_RUN_ID in group else None
        fill = []
        for pair, our_cells, their_cells in zip(differing, ours, theirs, strict=True):
            if _profiling_key(group, their_cells) > _profiling_key(group, our_cells):
                fill.append(pair)
                continue
            unlike = [
                cells
                for cells in zip(group, our_cells, their_cells, strict=True)
                if cells[1] and cells[2] and not _same(cells[1], cells[2])
            ]
            both_have_samples = our_cells[run] and their_cells[run] if run is not None else ""
            if unlike and not both_have_samples:
                what, kept, dropped = next((cells for cells in unlike if cells[0] == PROFILING_AVERAGE), unlike[0])
                self._conflict(pair[0], what, kept, "", dropped, "")
        self._move(group, fill)
        self.tally.profiled = {at for at, _ in fill}

    def others(self) -> None:
        """Fills empty cells of other columns; records conflicts."""
        for name in map(str, self._source.columns):
            if name in _OF_OTHER_GROUPS or is_microbench_column(name) or name.startswith(_PROFILING):
                continue
            differing = self._differing_pairs([name])
            if not differing:
                continue
            ours = _cells(self._target, [name], [at for at, _ in differing])
            theirs = _cells(self._source, [name], [of for _, of in differing])
            fill = []
            for pair, (our_cell,), (their_cell,) in zip(differing, ours, theirs, strict=True):
                if not our_cell:
                    fill.append(pair)
                elif not _same(our_cell, their_cell):
                    self._conflict(pair[0], name, our_cell, "", their_cell, "")
            self._move([name], fill)
            self.tally.filled += len(fill)

    def _differing_pairs(self, names: Sequence[str]) -> list[Pair]:
        """Returns the pairs in which the source has a different, non-empty cell in one of the columns.

        Compares with Arrow: most combinations have few different cells.
        """
        differs = np.zeros(len(self._pairs), dtype=bool)
        at, of = (pa.array([pair[side] for pair in self._pairs], type=pa.int64()) for side in (0, 1))
        for name in names:
            theirs = pa.array(self._source[name], type=_TEXT).take(of)
            ours = pa.array(self._target[name], type=_TEXT).take(at) if name in self._target.columns else ""
            other = pc.and_(pc.not_equal(ours, theirs), pc.not_equal(theirs, ""))
            differs |= other.to_numpy(zero_copy_only=False)
        return [self._pairs[index] for index in np.flatnonzero(differs)]

    def _move(self, names: Sequence[str], pairs: Sequence[Pair]) -> None:
        """Copies cells from the source to the target, by column."""
        if not pairs:
            return
        for name in names:
            ours, theirs = self.rows[name], self._theirs[name]
            for at, of in pairs:
                ours[at] = theirs[of]

    def _conflict(self, at: int, what: str, kept: str, kept_run: str, dropped: str, dropped_run: str) -> None:
        self.tally.conflicts.append(
            Conflict(
                self._kernel_type,
                self._signatures[at],
                self.rows[INPUT_SHAPES][at],
                what,
                kept,
                kept_run,
                dropped,
                dropped_run,
                self._source_name,
            )
        )


def _cells(frame: pd.DataFrame, columns: list[str], positions: Sequence[int]) -> list[tuple[str, ...]]:
    """Returns the cells of some rows; empty cells for missing columns."""
    rows = frame.reindex(columns=columns, fill_value="").take(positions)
    return list(zip(*(rows[name].tolist() for name in columns), strict=True))


def _profiling_key(group: Sequence[str], cells: Sequence[str]) -> int:
    """Returns a sort key of a Profiling group: 2 with a valid average, 1 with any cell, 0 if empty."""
    average = cells[group.index(PROFILING_AVERAGE)] if PROFILING_AVERAGE in group else ""
    return 2 if valid_duration(average) is not None else any(cells)


def _row_statuses(rows: TableEdit) -> list[_RowStatus | None]:
    """Returns the status of each row; None for a row that never ran.

    A duration with an empty Status counts as a status; "measured" without a duration does not.
    """
    verdicts: list[_RowStatus | None] = []
    for status, reason, run, duration in zip(
        *(rows[name] for name in (STATUS, STATUS_REASON, RUN_ID, AVERAGE)), strict=True
    ):
        bare, later = split_later_run(reason)
        if later:
            verdicts.append(_RowStatus(later, status, bare))
        elif valid_duration(duration) is not None or (status and not _is_measured(status)):
            verdicts.append(_RowStatus(run, status, reason))
        else:
            verdicts.append(None)
    return verdicts


@lru_cache(maxsize=64)
def _is_measured(status: str) -> bool:
    return Status.from_cell(status) is Status.MEASURED


def _same(cell: str, other: str) -> bool:
    """Returns whether two cells are equal, except for quotes of a profiler and the form of numbers (`1.5`, `1.50`)."""
    cell, other = cell.strip('" '), other.strip('" ')
    if cell == other:
        return True
    try:
        return float(cell) == float(other)
    except ValueError:
        return False
