"""Records into CSVs: what an update mode does with each, and nothing lost.

Merging the same records twice gives the same files, so a merge that was cut off is simply done
again.

Samples of a sibling (database.matmul_family) are those of the row of the type that really ran: its
CSV is where they are updated or appended. They fill the row that was asked for too, which says so in
its Status Reason, and are never appended there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import pandas as pd

from database.bulk import without_cycle_collection
from database.editing import TableEdit, positions_by
from database.errors import OpAtlasError
from database.measured import (
    crashes_cell,
    duration_columns,
    identity_columns,
    measured_cells,
    measured_columns,
)
from database.record import Record
from database.schema import CRASHES_IN_A_ROW, RUN_ID, STATUS, STATUS_REASON, Status, microbench_counter
from database.signature import signatures
from database.statistics import valid_duration
from database.store import Database, Table, read_frame, write_frame

PRUNED_REASON = "Pruned Reason"


class UpdateMode(str, Enum):
    """What a session runs, and what it does with samples that match no row."""

    ALL = "all"
    MISSING_ONLY = "missing-only"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class RowName:
    """A row, named for reports."""

    kernel_type: str
    signature: str


@dataclass
class MergeResult:
    """What became of the rows that records were about.

    Attributes:
        updated: rows whose duration was measured anew, by kernel type.
        added: rows that were not there and were appended, by kernel type.
        marked: rows that only got a status, by kernel type; their durations are what they were.
        unchanged: rows whose record had been merged before, by kernel type.
        unmatched: records without a row that the mode does not append.
        pruned: rows that were moved to the pruned folder.
        problems: files that could not be read or written; their records are not merged.
    """

    updated: Counter[str] = field(default_factory=Counter)
    added: Counter[str] = field(default_factory=Counter)
    marked: Counter[str] = field(default_factory=Counter)
    unchanged: Counter[str] = field(default_factory=Counter)
    unmatched: list[RowName] = field(default_factory=list)
    pruned: list[RowName] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def has_duration(kernel_type: str, row: Mapping[str, str]) -> bool:
    """Whether any of the durations of a row is valid."""
    return any(valid_duration(row.get(column, "")) is not None for column in duration_columns(kernel_type))


def merge(
    database: Database, records: Iterable[Record], mode: UpdateMode, *, prune: bool, keep_newer: bool = False
) -> MergeResult:
    """Merges records into the CSVs of a database, one file at a time, each replaced in one step.

    Args:
        records: of any kernel types; of several about one row, the last counts. A row that has none
            of its own gets the samples that its siblings' records brought.
        mode: whether rows that are not there are appended (all) or reported (missing-only).
        prune: whether rows that these records are about, and that have no valid duration now, are
            moved to `pruned/`.
        keep_newer: leave rows alone that hold what a later run than the record's found out.

    Raises:
        OpAtlasError: the database cannot be locked. A file that cannot be read or written is a
            problem of the result, and does not keep the records of other kernel types out.
    """
    result = MergeResult()
    with database.lock(), without_cycle_collection():
        for kernel_type, of_type in _by_type(records).items():
            try:
                _merge_table(database, kernel_type, of_type, mode, prune, keep_newer, result)
            except OpAtlasError as error:
                result.problems.append(str(error))
    return result


@dataclass
class _OfType:
    """The records that count for the rows of a kernel type, by signature.

    Attributes:
        own: about the rows themselves.
        brought: samples of rows that ran for a sibling's row, and that no record of their own tells of.
    """

    own: dict[str, Record] = field(default_factory=dict)
    brought: dict[str, Record] = field(default_factory=dict)


def _by_type(records: Iterable[Record]) -> dict[str, _OfType]:
    by_type: dict[str, _OfType] = {}
    for record in records:
        by_type.setdefault(record.kernel_type, _OfType()).own[record.signature] = record
    for asked in [record for of_type in by_type.values() for record in of_type.own.values()]:
        brought = asked.of_what_ran()
        if brought is None:
            continue
        of_type = by_type.setdefault(brought.kernel_type, _OfType())
        own = of_type.own.get(brought.signature)
        if own is not None and own.measurement is not None and own.measurement.ran_as is not None:
            # It was filled by a sibling itself, and here are samples of its very own.
            del of_type.own[brought.signature]
            own = None
        if own is None:
            of_type.brought[brought.signature] = brought
    return by_type


def _merge_table(
    database: Database,
    kernel_type: str,
    of_type: _OfType,
    mode: UpdateMode,
    prune: bool,
    keep_newer: bool,
    result: MergeResult,
) -> None:
    records = {**of_type.own, **of_type.brought}
    path = database.csv_path(kernel_type)
    if path.exists():
        table = database.read(kernel_type)
    else:
        table = Table(
            kernel_type, path, pd.DataFrame({name: pd.Series(dtype=str) for name in identity_columns(kernel_type)})
        )
    rows = TableEdit(table.frame)
    positions = positions_by(signatures(kernel_type, table.frame))
    added = 0
    unmatched = []
    for signature, record in records.items():
        if signature in positions:
            continue
        if mode is UpdateMode.ALL and record.measurement is not None:
            # Samples of a sibling are appended where they belong.
            if record.measurement.ran_as is None:
                positions[signature] = [rows.append(record.cells)]
                added += 1
        else:
            unmatched.append(RowName(kernel_type, signature))
    matched = [(position, record) for signature, record in records.items() for position in positions.get(signature, ())]
    if mode is UpdateMode.MISSING_ONLY:
        # Nobody asked for these rows; a sample of theirs came by.
        durations = [rows[column] for column in duration_columns(kernel_type)]
        matched = [
            (position, record)
            for position, record in matched
            if record.signature not in of_type.brought
            or not any(valid_duration(cells[position]) for cells in durations)
        ]
    if keep_newer:
        # Run ids begin with the time at which the run started.
        runs = rows[RUN_ID]
        matched = [(position, record) for position, record in matched if runs[position] <= record.run_id]
    measured = [(position, record) for position, record in matched if record.measurement is not None]
    updated = _set_measured(rows, measured)
    marked = {
        position for position, record in matched if record.measurement is None and _set_status(rows, position, record)
    }
    pruned = _to_prune(kernel_type, rows, positions, of_type.own) if prune else []
    pruned_names: list[RowName] = []
    if updated or marked or pruned:
        frame = rows.frame()
        if pruned:
            gone = frame.iloc[pruned]
            append_pruned(database, kernel_type, gone.assign(**{PRUNED_REASON: gone[STATUS_REASON].to_list()}))
            frame = frame.drop(index=frame.index[pruned])
            pruned_names = [RowName(kernel_type, signature) for signature in signatures(kernel_type, gone)]
        database.write(Table(kernel_type, path, frame))
    # Only now, for a file that cannot be written counts for nothing.
    result.updated[kernel_type] += len(updated) - added
    result.added[kernel_type] += added
    result.marked[kernel_type] += len(marked)
    result.unchanged[kernel_type] += len(matched) - len(updated) - len(marked)
    result.unmatched += unmatched
    result.pruned += pruned_names


def _set_measured(rows: TableEdit, measured: Sequence[tuple[int, Record]]) -> set[int]:
    """Brings rows up to date with their measurement; the positions of those that changed."""
    changed: set[int] = set()
    if not measured:
        return changed
    # A column at a time: a session may have measured every row of a large table.
    positions = [position for position, _ in measured]
    values = zip(*[measured_cells(record) for _, record in measured], strict=True)
    for name, cells in zip(measured_columns(measured[0][1].kernel_type), values, strict=True):
        changed |= _set_column(rows[name], positions, cells)
    for position, record in measured:
        for counter, value in record.measurement.counters.items() if record.measurement else ():
            changed |= _set_column(rows[microbench_counter(counter)], [position], [repr(value)])
    return changed


def _set_column(column: list[str], positions: Sequence[int], cells: Sequence[str]) -> set[int]:
    changed = set()
    for position, cell in zip(positions, cells, strict=True):
        if column[position] != cell:
            column[position] = cell
            changed.add(position)
    return changed


def _set_status(rows: TableEdit, position: int, record: Record) -> bool:
    """Marks a row that was not measured; its durations stay. Whether that changed anything."""
    if record.status is Status.SKIPPED and Status.of_cell(rows[STATUS][position]) not in (None, Status.SKIPPED):
        # It was not run: what earlier runs found out of it is still all there is to know.
        return False
    cells = {STATUS: record.status.value, STATUS_REASON: record.reason, CRASHES_IN_A_ROW: crashes_cell(record)}
    if valid_duration(rows[duration_columns(record.kernel_type)[0]][position]) is None:
        cells[RUN_ID] = record.run_id
    else:
        # The run id stays with the duration that it accounts for.
        cells[STATUS_REASON] = f"{record.reason} [run {record.run_id}]"
    changed = [_set_column(rows[name], [position], [cell]) for name, cell in cells.items()]
    return any(changed)


def _to_prune(
    kernel_type: str, rows: TableEdit, positions: Mapping[str, list[int]], records: Iterable[str]
) -> list[int]:
    durations = [rows[column] for column in duration_columns(kernel_type)]
    return sorted(
        position
        for signature in records
        for position in positions.get(signature, ())
        if not any(valid_duration(cells[position]) for cells in durations)
    )


def append_pruned(database: Database, kernel_type: str, rows: pd.DataFrame) -> None:
    """Adds rows to the file of pruned ones. It only grows: a row that comes back and is pruned again stands twice."""
    path = database.pruned_dir / f"{kernel_type}.csv"
    if path.exists():
        rows = pd.concat([read_frame(path), rows]).fillna("")
    write_frame(rows, path)
