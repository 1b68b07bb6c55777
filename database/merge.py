"""Records into CSVs: what an update mode does with each, and nothing lost.

Merging the same records twice gives the same files, so a merge that was cut off is simply done
again. database/merge_rule.py has the rule for the rows of one table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

import pandas as pd

from database import journal
from database.bulk import without_cycle_collection
from database.errors import described
from database.history import Histories, keep_replaced
from database.measured import duration_columns, identity_columns
from database.merge_rule import RecordsOfType, TableMerge, by_type
from database.pruned import PRUNED_REASON, append_pruned
from database.record import Record, RowName
from database.run_order import RunOrder
from database.schema import RUN_ID, STATUS_REASON
from database.signature import signatures
from database.statistics import valid_duration
from database.store import Database, Table


class UpdateMode(str, Enum):
    """What a session runs, and what it does with samples that match no row.

    ALL: every row. MISSING_ONLY: rows without any duration. UNREPLAYED: rows without a replayed duration. STALE: rows
    whose replayed duration was measured by other code, or with another driver or other versions, than the present ones.
    """

    ALL = journal.ALL
    MISSING_ONLY = journal.MISSING_ONLY
    UNREPLAYED = journal.UNREPLAYED
    STALE = journal.STALE

    @property
    def adds_rows(self) -> bool:
        """Whether samples that match no row are appended."""
        return self is UpdateMode.ALL

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
        stayed: rows that were left alone, as a later run has found out more about them.
        repeated: how many of the rows in `updated` repeat the signature of an earlier row, whose duration they got.
        unmatched: records without a row that the mode does not append.
        of_siblings: what ran for the rows of sibling types and has no row of its own, where the mode appends none.
        pruned: rows that were moved to the pruned folder.
        problems: files that could not be read or written; their records are not merged.
    """

    updated: Counter[str] = field(default_factory=Counter)
    added: Counter[str] = field(default_factory=Counter)
    marked: Counter[str] = field(default_factory=Counter)
    unchanged: Counter[str] = field(default_factory=Counter)
    stayed: list[RowName] = field(default_factory=list)
    repeated: int = 0
    unmatched: list[RowName] = field(default_factory=list)
    of_siblings: list[RowName] = field(default_factory=list)
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
        mode: whether rows that are not there are appended (all) or reported (any other mode).
        prune: whether rows that were run, and that have no valid duration now, are moved to `pruned/`.
        keep_newer: leave rows alone that hold what a later run than the record's found out.

    Raises:
        OpAtlasError: the database cannot be locked. A file that cannot be read or written, whatever
            the reason, is a problem of the result, and does not keep the records of other kernel types out.
    """
    result = MergeResult()
    histories = Histories(database)
    with database.lock(), without_cycle_collection():
        for kernel_type, of_type in by_type(records).items():
            try:
                _merge_table(database, histories, kernel_type, of_type, mode, prune, keep_newer, result)
            except Exception as error:
                place = database.path / f"{kernel_type}.csv"
                result.problems.append(described(error, place, "not merged; report this error with the file"))
    return result


def _merge_table(
    database: Database,
    histories: Histories,
    kernel_type: str,
    records: RecordsOfType,
    mode: UpdateMode,
    prune: bool,
    keep_newer: bool,
    result: MergeResult,
) -> None:
    table = table_of(database, kernel_type)
    merged = TableMerge(kernel_type, table.frame)
    append = mode.adds_rows
    changes = merged.apply(records, append=append, brought_too=append, order=RunOrder() if keep_newer else None)
    pruned = merged.to_prune(records.own.values()) if prune else []
    _keep_replaced(database, histories, table, changes.updated)
    is_changed = bool(changes.updated or changes.marked or pruned)
    gone = _write(database, table, merged.rows.frame(), pruned) if is_changed else []
    # Only now, for a file that cannot be written counts for nothing.
    result.updated[kernel_type] += len(changes.updated) - len(changes.appended)
    result.added[kernel_type] += len(changes.appended)
    result.marked[kernel_type] += len(changes.marked)
    result.unchanged[kernel_type] += changes.unchanged
    result.stayed += [RowName(kernel_type, record.signature) for record in changes.stayed]
    result.repeated += len(changes.updated) - len({record.signature for record in changes.updated.values()})
    for record in changes.missing:
        if not mode.adds_rows or record.measurement is None:
            is_own = record.signature in records.own
            (result.unmatched if is_own else result.of_siblings).append(RowName(kernel_type, record.signature))
    result.pruned += gone


def table_of(database: Database, kernel_type: str) -> Table:
    """The table of a kernel type, without rows where the database has none yet."""
    path = database.csv_path(kernel_type)
    if path.exists():
        return database.read(kernel_type)
    columns = {name: pd.Series(dtype=str) for name in identity_columns(kernel_type)}
    return Table(kernel_type, path, pd.DataFrame(columns))


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
