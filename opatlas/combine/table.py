"""One table into another: what its rows take, keep and fill, and where the two disagree.

Columns belong to groups, and a group moves whole, so that no row mixes two measurements:

duration    Average Duration(us), MicroBench *, Cache State, Instrument, Run ID: of the newest run
            that has a valid duration
status      Status, Status Reason, Crashes In A Row: of the newest run that gave a status
profiling   Profiling *: the target's, the source's where that has none; those whose samples both databases have are
            made anew from all samples afterwards
pooled      Pooled *: the target's; opatlas/combine/pool.py makes them
others      each by itself: the target's cell, the source's where that is empty

Combining the same table twice gives what combining it once gave.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from opatlas.model.quality import valid_duration
from opatlas.model.schema import (
    AVERAGE,
    CRASHES_IN_A_ROW,
    INPUT_SHAPES,
    INPUT_SLOTS,
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
from opatlas.model.signature import signatures
from opatlas.store.cells import TableEdit
from opatlas.store.manifest import Age, RunOrder

_TEXT = pa.large_string()
_PROFILING = "Profiling "
#: Rows with equal signatures may spell their slots differently; either spelling is the row.
_SLOTS = (*INPUT_SLOTS, *OUTPUT_SLOTS)
#: What `others` leaves alone, besides columns with a prefix.
_OF_OTHER_GROUPS = frozenset({*STATUS_GROUP, *POOLED, *_SLOTS})
#: Positions of a row of the target, and of the source's row of its signature.
Pair = tuple[int, int]
#: How opatlas.store.write_back ends the reason of a row that failed in a later run than its duration is of.
_LATER_RUN = re.compile(r" \[run ([^\[\]\s]+)\]\Z")


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two values of a row, of which one had to go.

    Attributes:
        what: the column; that of the average stands for a whole duration or profiling group.
        kept, dropped: the cells.
        kept_run, dropped_run: the runs of two durations; "" for anything else.
        source: where what was combined came from.
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

    @property
    def ratio(self) -> float | None:
        """Kept to dropped duration; None where they are no durations."""
        kept_us, dropped_us = valid_duration(self.kept), valid_duration(self.dropped)
        if self.what not in (AVERAGE, PROFILING_AVERAGE) or kept_us is None or dropped_us is None:
            return None
        return kept_us / dropped_us

    @property
    def place(self) -> tuple[str, str, str]:
        """Which cell of which row it is about."""
        return self.kernel_type, self.signature, self.what

    @property
    def distance(self) -> float:
        """How far apart two durations are: 2 for twice or half as long; 1 for anything else."""
        ratio = self.ratio or 1.0
        return max(ratio, 1 / ratio)


def final_conflicts(conflicts: Sequence[Conflict]) -> list[Conflict]:
    """Returns the conflicts of a table with several sources: each with what was kept at last, each dropped value once.

    Args:
        conflicts: in the order in which the sources were combined.
    """
    kept = {conflict.place: (conflict.kept, conflict.kept_run) for conflict in conflicts}
    found: dict[tuple[object, ...], Conflict] = {}
    for conflict in conflicts:
        cell, run = kept[conflict.place]
        key = (conflict.place, conflict.dropped, conflict.dropped_run)
        if key not in found:
            found[key] = replace(conflict, kept=cell, kept_run=run)
    return list(found.values())


@dataclass
class RowTally:
    """What became of the rows of a table, by their positions: several sources may be combined into it.

    Attributes:
        added: how many rows the target lacked.
        taken: rows that have the source's duration now.
        kept: rows whose own duration stayed although the source has one: it is newer, or the same one.
        statuses: rows that have the source's status now, with that status.
        profiled: rows whose profiling columns were filled.
        filled: how many other cells were filled.
        conflicts: in the order of the columns' groups, then of the rows.
        replaced: rows whose own duration is gone, because the source has a newer one.
        dropped: positions of the source's rows whose duration was not taken, because the target has a newer one.
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
        """Whether a row that the target had is another one now."""
        return bool(self.taken or self.statuses or self.profiled or self.filled)


@dataclass(frozen=True)
class CombinedTable:
    """A table with another one in it."""

    frame: pd.DataFrame
    tally: RowTally


def combine_tables(
    kernel_type: str, target: pd.DataFrame, source: pd.DataFrame, order: RunOrder, source_name: str
) -> CombinedTable:
    """Brings the rows of `source` into those of `target`; neither frame is changed.

    Rows of the target keep their places, rows that it lacks follow in the source's order. Rows of
    the target with equal signatures all get the same; of those in the source, the one with the
    newest valid duration counts.

    Args:
        target, source: text cells of rows of one kernel type.
        order: tells which of two runs is the newer.
        source_name: what conflicts call the source.
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
    """`frame` and `rows` below it, with the columns of `rows` that hold something where their group is."""
    columns = insert_columns(list(frame.columns), [name for name in rows.columns if rows[name].any()])
    parts = [part.reindex(columns=columns, fill_value="") for part in (frame, rows)]
    together: pd.DataFrame = pd.concat(parts, ignore_index=True)
    return together


class _Verdict(NamedTuple):
    """The status of a row: the run that gave it, and its reason without the run at its end."""

    run: str
    status: str
    reason: str


class _Combination:
    """A combination under way.

    Attributes:
        rows: the target's, being changed.
        missing: positions of the source's rows that the target lacks.
        tally: what became of the rows so far.
    """

    def __init__(
        self, kernel_type: str, target: pd.DataFrame, source: pd.DataFrame, order: RunOrder, source_name: str
    ) -> None:
        self.rows = TableEdit(target)
        self.missing: list[int] = []
        self.tally = RowTally()
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
        """The row of the source that counts, by signature."""
        durations, runs = self._theirs[AVERAGE], self._theirs[RUN_ID]

        def worth(of: int) -> tuple[bool, Age]:
            return valid_duration(durations[of]) is not None, self._age(runs[of])

        chosen: dict[str, int] = {}
        for of, signature in enumerate(source_signatures):
            first = chosen.setdefault(signature, of)
            if first != of and worth(of) > worth(first):
                chosen[signature] = of
        return chosen

    def durations_and_statuses(self) -> None:
        """Durations and statuses together: where the failing run is written depends on whether there is a duration."""
        # Before anything moves: a failing run may stand in the Run ID that a new duration brings along.
        ours, theirs = _verdicts(self.rows), _verdicts(self._theirs)
        newer = self._newer_durations()
        self._move([name for name in self._columns if is_microbench_column(name)], newer)
        self.tally.taken = {at for at, _ in newer}
        self._write_runs((at, ours[at]) for at, _ in newer)
        fresh = [(at, of) for at, of in self._pairs if self._weight(theirs[of]) > self._weight(ours[at])]
        before = self._accounts(fresh)
        self._move((STATUS, CRASHES_IN_A_ROW), fresh)
        self._write_runs((at, theirs[of]) for at, of in fresh)
        after = self._accounts(fresh)
        rows = zip(fresh, before, after, strict=True)
        self.tally.statuses = {at: now[0] for (at, _), was, now in rows if was != now}

    def _newer_durations(self) -> list[Pair]:
        """The pairs whose duration is the source's from now on; tells of conflicts."""
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
            # Without a run id, an equal duration is all that tells one measurement from another.
            if our_us is not None and (run != their_run or (not run and our_us != their_us)):
                ours, theirs = (durations[at], run), (their_durations[of], their_run)
                self._conflict(at, AVERAGE, *(theirs if take else ours), *(ours if take else theirs))
                if take:
                    self.tally.replaced.append(at)
                else:
                    self.tally.dropped.append(of)
        return newer

    def _weight(self, verdict: _Verdict | None) -> tuple[Age, int]:
        """Greater is newer; within a run, having been measured counts for more than anything else."""
        if verdict is None:
            return self._age(""), 0
        return self._age(verdict.run), 2 if _measured(verdict.status) else bool(verdict.status)

    def _accounts(self, pairs: Sequence[Pair]) -> list[tuple[str, ...]]:
        columns = [self.rows[name] for name in (*STATUS_GROUP, RUN_ID)]
        return [tuple([column[at] for column in columns]) for at, _ in pairs]

    def _write_runs(self, verdicts: Iterable[tuple[int, _Verdict | None]]) -> None:
        """Writes reason and run of some rows as write_back does: with a duration, the Run ID accounts for that."""
        durations, reasons, runs = self.rows[AVERAGE], self.rows[STATUS_REASON], self.rows[RUN_ID]
        for at, verdict in verdicts:
            if verdict is None:
                continue
            reason = verdict.reason
            if valid_duration(durations[at]) is None:
                runs[at] = verdict.run
            elif verdict.run and verdict.status and not _measured(verdict.status):
                reason = f"{reason} [run {verdict.run}]"
            reasons[at] = reason

    def profiling(self) -> None:
        """Fills profiling groups that the target lacks; tells of those that differ."""
        group = [name for name in self._columns if name.startswith(_PROFILING)]
        differing = self._differing([name for name in group if name in self._source.columns])
        ours = _cells(self._target, group, [at for at, _ in differing])
        theirs = _cells(self._source, group, [of for _, of in differing])
        run = group.index(PROFILING_RUN_ID) if PROFILING_RUN_ID in group else None
        fill = []
        for pair, our_cells, their_cells in zip(differing, ours, theirs, strict=True):
            if _worth(group, their_cells) > _worth(group, our_cells):
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
        """Fills cells of the other columns; tells of those that differ."""
        for name in map(str, self._source.columns):
            if (
                is_microbench_column(name)
                or name in POOLED
                or name in STATUS_GROUP
                or name.startswith(_PROFILING)
                or name in _SLOTS
            ):
                continue
            differing = self._differing([name])
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

    def _differing(self, names: Sequence[str]) -> list[Pair]:
        """The pairs in which one of some columns of the source holds something else than the target's.

        Found without a Python object for each cell: in most combinations there are few.
        """
        differs = np.zeros(len(self._pairs), dtype=bool)
        at, of = (pa.array([pair[side] for pair in self._pairs], type=pa.int64()) for side in (0, 1))
        for name in names:
            theirs = pa.array(self._source[name], type=_TEXT).take(of)
            ours = pa.array(self._target[name], type=_TEXT).take(at) if name in self._target.columns else ""
            other = pc.and_(pc.not_equal(ours, theirs), pc.not_equal(theirs, ""))
            differs |= other.to_numpy(zero_copy_only=False)
        return [self._pairs[place] for place in np.flatnonzero(differs)]

    def _move(self, names: Sequence[str], pairs: Sequence[Pair]) -> None:
        """Puts the source's cells into the target's, a column at a time."""
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
    """The cells of some rows; empty ones where there is no such column."""
    rows = frame.reindex(columns=columns, fill_value="").take(positions)
    return list(zip(*(rows[name].tolist() for name in columns), strict=True))


def _worth(group: Sequence[str], cells: Sequence[str]) -> int:
    """Greater is better to have: profiling columns with a valid average, with anything, with nothing."""
    average = cells[group.index(PROFILING_AVERAGE)] if PROFILING_AVERAGE in group else ""
    return 2 if valid_duration(average) is not None else any(cells)


def _verdicts(rows: TableEdit) -> list[_Verdict | None]:
    """The status of each row; None of one that never ran.

    A duration with an empty Status is a status too; "measured" with no duration left is none.
    """
    verdicts: list[_Verdict | None] = []
    for status, reason, run, duration in zip(
        *(rows[name] for name in (STATUS, STATUS_REASON, RUN_ID, AVERAGE)), strict=True
    ):
        later = _LATER_RUN.search(reason) if reason else None
        if later is not None:
            verdicts.append(_Verdict(later[1], status, reason[: later.start()]))
        elif valid_duration(duration) is not None or (status and not _measured(status)):
            verdicts.append(_Verdict(run, status, reason))
        else:
            verdicts.append(None)
    return verdicts


@lru_cache(maxsize=64)
def _measured(status: str) -> bool:
    return Status.of_cell(status) is Status.MEASURED


def _same(cell: str, other: str) -> bool:
    """Whether two cells say the same, with and without the quotes of a profiler, `1.5` and `1.50`."""
    cell, other = cell.strip('" '), other.strip('" ')
    if cell == other:
        return True
    try:
        return float(cell) == float(other)
    except ValueError:
        return False
