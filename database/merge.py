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
from database.history import Histories, keep_replaced
from database.measured import (
    crashes_cell,
    duration_columns,
    identity_columns,
    measured_cells,
)
from database.record import Record, RowName
from database.run_order import RunOrder
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
    histories = Histories(database)
    with database.lock(), without_cycle_collection():
        for kernel_type, of_type in _by_type(records).items():
            try:
                _merge_table(database, histories, kernel_type, of_type, mode, prune, keep_newer, result)
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

    def all(self) -> dict[str, Record]:
        return {**self.own, **self.brought}


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
    histories: Histories,
    kernel_type: str,
    of_type: _OfType,
    mode: UpdateMode,
    prune: bool,
    keep_newer: bool,
    result: MergeResult,
) -> None:
    table = _table_of(database, kernel_type)
    rows = TableEdit(table.frame)
    positions = positions_by(signatures(kernel_type, table.frame))
    missing = [record for signature, record in of_type.all().items() if signature not in positions]
    appended = _append_measured(rows, missing) if mode is UpdateMode.ALL else {}
    positions |= appended
    matched = _matched(kernel_type, rows, positions, of_type, mode, keep_newer)
    updated = _set_measured(
        rows, [(position, record) for position, record in matched if record.measurement is not None]
    )
    marked = {
        position for position, record in matched if record.measurement is None and _set_status(rows, position, record)
    }
    pruned = _to_prune(kernel_type, rows, positions, of_type.own) if prune else []
    _keep_replaced(
        database, histories, table, {position: record for position, record in matched if position in updated}
    )
    gone = _write(database, table, rows.frame(), pruned) if updated or marked or pruned else []
    # Only now, for a file that cannot be written counts for nothing.
    result.updated[kernel_type] += len(updated) - len(appended)
    result.added[kernel_type] += len(appended)
    result.marked[kernel_type] += len(marked)
    result.unchanged[kernel_type] += len(matched) - len(updated) - len(marked)
    result.unmatched += [
        RowName(kernel_type, record.signature)
        for record in missing
        if mode is UpdateMode.MISSING_ONLY or record.measurement is None
    ]
    result.pruned += gone


def _table_of(database: Database, kernel_type: str) -> Table:
    """The table of a kernel type, without rows where the database has none yet."""
    path = database.csv_path(kernel_type)
    if path.exists():
        return database.read(kernel_type)
    columns = {name: pd.Series(dtype=str) for name in identity_columns(kernel_type)}
    return Table(kernel_type, path, pd.DataFrame(columns))


def _append_measured(rows: TableEdit, missing: Iterable[Record]) -> dict[str, list[int]]:
    """Adds the rows of records that were measured; where they are, by signature."""
    return {
        record.signature: [rows.append(record.cells)]
        for record in missing
        # Samples of a sibling are appended where they belong.
        if record.measurement is not None and record.measurement.ran_as is None
    }


def _matched(
    kernel_type: str,
    rows: TableEdit,
    positions: Mapping[str, Sequence[int]],
    of_type: _OfType,
    mode: UpdateMode,
    keep_newer: bool,
) -> list[tuple[int, Record]]:
    """The rows that records tell of, each with its record, but for those that are to stay as they are."""
    order = RunOrder()

    def stays(position: int, record: Record) -> bool:
        if keep_newer and order.age(rows[RUN_ID][position]) > order.age(record.run_id):
            return True
        # Nobody asked for a row of which only a sample came by.
        only_came_by = mode is UpdateMode.MISSING_ONLY and record.signature in of_type.brought
        return only_came_by and any(valid_duration(rows[name][position]) for name in duration_columns(kernel_type))

    return [
        (position, record)
        for signature, record in of_type.all().items()
        for position in positions.get(signature, ())
        if not stays(position, record)
    ]


def _keep_replaced(database: Database, histories: Histories, table: Table, updated: Mapping[int, Record]) -> None:
    """Keeps the rows whose durations go now and are in no history, by the run that replaces them."""
    frame, kernel_type = table.frame, table.kernel_type
    own_duration = duration_columns(kernel_type)[0]
    if own_duration not in frame.columns:
        return
    durations = frame[own_duration].tolist()
    run_ids = frame[RUN_ID].tolist() if RUN_ID in frame.columns else [""] * len(frame)
    lost: dict[str, list[int]] = {}
    for position, record in updated.items():
        is_new = position >= len(frame)
        if is_new or valid_duration(durations[position]) is None or run_ids[position] == record.run_id:
            continue
        if not histories.have(run_ids[position], RowName(kernel_type, record.signature)):
            lost.setdefault(record.run_id, []).append(position)
    for run_id, positions in lost.items():
        keep_replaced(database, run_id, kernel_type, frame.iloc[sorted(positions)])


def _write(database: Database, table: Table, frame: pd.DataFrame, pruned: Sequence[int]) -> list[RowName]:
    """Writes a table without its pruned rows, which are kept first in a file of their own; their names."""
    gone = frame.iloc[list(pruned)]
    if pruned:
        append_pruned(database, table.kernel_type, gone.assign(**{PRUNED_REASON: gone[STATUS_REASON].to_list()}))
        frame = frame.drop(index=gone.index)
    database.write(Table(table.kernel_type, table.path, frame))
    return [RowName(table.kernel_type, signature) for signature in signatures(table.kernel_type, gone)]


def _set_measured(rows: TableEdit, measured: Sequence[tuple[int, Record]]) -> set[int]:
    """Brings rows up to date with their measurement; the positions of those that changed."""
    changed: set[int] = set()
    # A column at a time: a session may have measured every row of a large table.
    columns: dict[str, list[str]] = {}
    for _, record in measured:
        for name, cell in measured_cells(record).items():
            columns.setdefault(name, []).append(cell)
    positions = [position for position, _ in measured]
    for name, cells in columns.items():
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
