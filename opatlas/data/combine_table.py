"""Folds the rows and records of sources into a table, and tells what changed and which values were dropped.

opatlas/data/fold.py has the rules. Combining a table twice gives the same result as combining it once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.compute as pc

from opatlas.data.cells import Candidate, CellGroup, candidates_of_rows, group_of
from opatlas.data.csv_files import positions_by_key
from opatlas.data.database import Database
from opatlas.data.fold import TableFold
from opatlas.row import columns as col
from opatlas.row.communication import row_kind
from opatlas.row.quality import valid_duration
from opatlas.row.table import RowTable, position_array

_ROWS_AT_A_TIME = 4096


@dataclass(frozen=True)
class Conflict:
    """Two values of a row, of which one was dropped.

    Attributes:
        what: the column; the average stands for its whole group.
        kept, dropped: the cells.
        kept_run, dropped_run: the runs of durations; "" for other cells.
        source: the name of the source that has the dropped value, or the kept one if the target had the dropped value.
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
        if self.what not in (col.AVERAGE, col.DURATION, col.PROFILING_AVERAGE):
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


@dataclass
class DurationCounts:
    """The number of rows of a table, and how many have a replayed and a captured duration."""

    rows: int = 0
    replayed: int = 0
    captured: int = 0


@dataclass
class TableChanges:
    """What sources changed in tables.

    Attributes:
        added: rows that the tables lacked; they follow in the order of the sources.
        target_rows: the rows that they have now.
        taken: the number of existing rows that have the duration of a source now.
        kept: the number of existing rows that keep their duration although a source has one.
        statuses: the number of existing rows that have the status of a source now, by status.
        profiled: the number of existing rows whose Profiling columns were filled.
        filled: the number of other cells that were filled.
        conflicts: the values that were dropped, each once.
    """

    added: DurationCounts = field(default_factory=DurationCounts)
    target_rows: DurationCounts = field(default_factory=DurationCounts)
    taken: int = 0
    kept: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    profiled: int = 0
    filled: int = 0
    conflicts: list[Conflict] = field(default_factory=list)


def combine_table(
    fold: TableFold,
    sources: Sequence[tuple[str, RowTable | Sequence[Candidate]]],
    target: Database,
    changes: TableChanges,
) -> None:
    """Folds what sources have into a table, one source after the other, and writes it.

    All rows of the table with one signature receive the same cells.

    Args:
        sources: the name of each source for conflicts, and its rows, or the candidates of its records.
        changes: receives what changed.

    Raises:
        OpAtlasError: a file cannot be written; the table is as it was.
    """
    kind, column = row_kind(fold.kernel_type), row_kind(fold.kernel_type).duration_columns[0]
    before, offers, others = fold.rows.table(), list[_Offer](), list[Conflict]()
    givers: dict[int, str] = {}
    offered: set[str] = set()
    for name, source in sources:
        for candidates in _batches(fold, source):
            givers.update(dict.fromkeys(fold.fold(candidates).measured, name))
            durations = ((each.signature, each.duration) for each in candidates)
            offers += (_Offer(of, part.run_id, part.cells.get(column, ""), name) for of, part in durations if part)
            others += _other_conflicts(fold, candidates, name)
        if isinstance(source, RowTable):
            offered.update(compress(source.signatures, source.replayed.known.tolist()))
    offered.update(each.signature for each in offers)
    after, there = fold.write(target), len(before)
    rows = after.arrow.slice(0, there)
    differ = {
        name: pc.not_equal(rows.column(name), before.arrow.column(name) if name in before.columns else "").to_numpy()
        for name in after.columns
        # A status of another run is no other status.
        if name != col.STATUS_RUN_ID
    }

    def changed(*groups: CellGroup) -> Any:
        """Returns the number of cells of some groups that differ, by row."""
        masks = [mask for name, mask in differ.items() if group_of(name, kind) in groups]
        return np.sum(masks, axis=0, dtype=int) if masks else np.zeros(there, dtype=int)

    replayed, captured = (~np.isnan(after.durations_us(name)) for name in (column, col.PROFILING_AVERAGE))
    had_duration = ~np.isnan(before.durations_us(column))
    taken = (changed(CellGroup.DURATION) > 0) & replayed[:there]
    for at in np.flatnonzero(taken & had_duration).tolist():
        own_run, own = before.cells(col.RUN_ID)[at], before.cells(column)[at]
        offers.append(_Offer(fold.signatures[at], own_run, own, givers[at]))
    is_offered = np.fromiter((name in offered for name in fold.signatures[:there]), dtype=bool, count=there)
    for counts, first in ((changes.target_rows, 0), (changes.added, there)):
        counts.rows += len(after) - first
        counts.replayed += int(replayed[first:].sum())
        counts.captured += int(captured[first:].sum())
    changes.taken += int(taken.sum())
    changes.kept += int((is_offered & had_duration & ~taken).sum())
    changes.statuses.update(after.cells(col.STATUS)[at] for at in np.flatnonzero(changed(CellGroup.STATUS)).tolist())
    changes.profiled += int(np.count_nonzero(changed(CellGroup.CAPTURED)))
    changes.filled += int(changed(CellGroup.OTHER, CellGroup.SLOTS).sum())
    told: dict[object, Conflict] = {}
    for each in (*_duration_conflicts(fold, column, offers), *others):
        told.setdefault((each.cell, each.dropped, each.dropped_run), each)
    changes.conflicts += told.values()


class _Offer(NamedTuple):
    """A duration of a row that a source, or the target, had."""

    signature: str
    run_id: str
    cell: str
    source: str


def _batches(fold: TableFold, source: RowTable | Sequence[Candidate]) -> Iterator[Sequence[Candidate]]:
    """Yields the candidates of a source; of a table those that the other one lacks, or has with other cells.

    They are yielded a few at a time, because they take ten times the memory of cells; those of one signature together.
    """
    if not isinstance(source, RowTable):
        yield source
        return
    signatures, ours = source.signatures, fold.rows.table()
    rows = {of for of, name in enumerate(signatures) if name not in fold.positions}
    pairs = [(at, of) for of, name in enumerate(signatures) for at in fold.positions.get(name, ())]
    at, of = (position_array([pair[side] for pair in pairs]) for side in (0, 1))
    for name in source.columns:
        # Rows with equal signatures may spell their slots differently; the target's spelling stays.
        if group_of(name, source.kind) not in (CellGroup.SLOTS, CellGroup.POOLED):
            theirs = source.arrow.column(name).take(of)
            there = ours.arrow.column(name).take(at) if name in ours.columns else ""
            differ = pc.and_(pc.not_equal(there, theirs), pc.not_equal(theirs, "")).to_numpy()
            rows.update(pairs[index][1] for index in np.flatnonzero(differ).tolist())
    ordered = sorted(rows)
    of_signatures = list(positions_by_key(signatures[row] for row in ordered).values())
    for first in range(0, len(of_signatures), _ROWS_AT_A_TIME):
        together = itertools.chain.from_iterable(of_signatures[first : first + _ROWS_AT_A_TIME])
        yield candidates_of_rows(source, [ordered[position] for position in together])


def _duration_conflicts(fold: TableFold, column: str, offers: Iterable[_Offer]) -> Iterator[Conflict]:
    """Yields a conflict for each duration that a row does not have."""
    durations, runs = fold.rows[column], fold.rows[col.RUN_ID]
    for name, run_id, cell, source in offers:
        for at in fold.positions.get(name, ()):
            if run_id != runs[at] or valid_duration(cell) != valid_duration(durations[at]):
                yield _conflict(fold, at, column, (durations[at], runs[at]), (cell, run_id), source)


def _other_conflicts(fold: TableFold, candidates: Iterable[Candidate], source: str) -> Iterator[Conflict]:
    """Yields a conflict for each other cell that a row has in another way, of captured cells for the first.

    Of rows whose samples both have, the captured cells are no conflict: the launches count together.
    """
    column = cache(fold.rows.__getitem__)

    def unlike(at: int, cells: Mapping[str, str]) -> list[str]:
        """Returns the columns in which a row has another cell, and not an empty one."""
        ours = ((name, column(name)[at], cell) for name, cell in cells.items())
        return [name for name, own, cell in ours if own != cell and own and not _same(own, cell)]

    for each in candidates:
        captured = each.captured or {}
        for at in fold.positions.get(each.signature, ()):
            both = captured.get(col.PROFILING_RUN_ID) and column(col.PROFILING_RUN_ID)[at]
            # The average stands for the group.
            first = sorted([] if both else unlike(at, captured), key=lambda name: name != col.PROFILING_AVERAGE)[:1]
            for name in (*first, *unlike(at, each.others)):
                yield _conflict(fold, at, name, (column(name)[at], ""), (each.cells[name], ""), source)


def _conflict(
    fold: TableFold, at: int, what: str, kept: tuple[str, str], dropped: tuple[str, str], source: str
) -> Conflict:
    shapes = fold.rows[col.INPUT_SHAPES][at]
    return Conflict(fold.kernel_type, fold.signatures[at], shapes, what, *kept, *dropped, source)


def _same(cell: str, other: str) -> bool:
    """Returns whether two cells are equal, except for quotes of a profiler and the form of numbers (`1.5`, `1.50`)."""
    cell, other = cell.strip('" '), other.strip('" ')
    try:
        return cell == other or float(cell) == float(other)
    except ValueError:
        return False


_HEADER = (
    *("Kernel Type", "Signature", col.INPUT_SHAPES),
    *("What", "Kept", "Kept Run", "Dropped", "Dropped Run", "Ratio", "Source"),
)


def write_conflicts(database: Database, conflicts: Iterable[Conflict]) -> Path | None:
    """Writes the list of conflicts to `reports/`; returns its path, or None without conflicts. Raises OpAtlasError."""
    rows = (
        (
            *(each.kernel_type, each.signature, each.input_shapes, each.what),
            *(each.kept, each.kept_run, each.dropped, each.dropped_run),
            *("" if each.ratio is None else f"{each.ratio:.4f}", each.source),
        )
        for each in conflicts
    )
    return database.write_report("combine_conflicts", _HEADER, rows)
