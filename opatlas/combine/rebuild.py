"""Rebuilds the CSVs of a database from the histories of its runs and the samples of its ingests.

The measured cells of a row are computed from all records of the row. Missing rows are added again, except pruned rows.
A row without a history is not changed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from opatlas.data import history
from opatlas.data.cells import duration_columns
from opatlas.data.csv_files import read_frame
from opatlas.data.database import Database
from opatlas.data.history import Histories, save_replaced, without_measurement
from opatlas.data.manifest import RunOrder, read_manifests
from opatlas.data.pruned import pruned_path
from opatlas.data.row_update import TableUpdate, TypeRecords, records_by_type
from opatlas.data.update_mode import UpdateMode
from opatlas.errors import OpAtlasError
from opatlas.gc_pause import gc_paused
from opatlas.row.columns import RUN_ID
from opatlas.row.quality import valid_duration
from opatlas.row.record import Record, RowName
from opatlas.row.signature import column_cells, signatures
from opatlas.row.table import RowTable


@dataclass
class RebuiltRows:
    """The result of a rebuild.

    Attributes:
        runs: the runs whose histories were read.
        changed: the number of rows whose cells changed, by kernel type.
        added: the number of rows that were missing, by kernel type.
        problems: files that could not be read or written.
    """

    runs: list[str] = field(default_factory=list)
    changed: Counter[str] = field(default_factory=Counter)
    added: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def rebuild(database: Database) -> RebuiltRows:
    """Recomputes the measured cells, file by file, each replaced in one step.

    A replaced duration is saved with its row (opatlas/data/history.py).

    Raises:
        OpAtlasError: the database cannot be locked.
    """
    rebuilt = RebuiltRows()
    with database.lock(), gc_paused():
        manifests = read_manifests(database, rebuilt.problems)
        order = RunOrder({manifest.run_id: manifest.started_at for manifest in manifests.values()})
        histories = Histories(database)
        tables: dict[str, _RebuiltTable | None] = {}
        for run_id in sorted(history.runs(database), key=order.age):
            try:
                contents = history.read(database, run_id)
            except OpAtlasError as error:
                rebuilt.problems.append(str(error))
                continue
            rebuilt.runs.append(run_id)
            rebuilt.problems += [
                f"{history.file_path(database, run_id)}:{line}: {problem}" for line, problem in contents.unreadable
            ]
            for kernel_type, records in records_by_type(contents.records).items():
                if kernel_type not in tables:
                    tables[kernel_type] = _open_table(database, histories, kernel_type, rebuilt)
                table = tables[kernel_type]
                if table is not None:
                    table.apply(records, UpdateMode(contents.header.update_mode), order)
        for table in tables.values():
            if table is not None:
                table.write(database, rebuilt)
    return rebuilt


class _RebuiltTable:
    def __init__(self, table: RowTable, histories: Histories, excluded: frozenset[str]) -> None:
        """`excluded` has the signatures of rows that are not added again."""
        self._before = table
        self._pruned_signatures = excluded
        self._added: set[int] = set()
        kernel_type, frame = table.kernel_type, table.frame
        run_ids = column_cells(frame, RUN_ID)
        self._durations = column_cells(frame, duration_columns(kernel_type)[0])
        known = []
        for position, (run_id, signature) in enumerate(zip(run_ids, signatures(kernel_type, frame), strict=True)):
            row = RowName(kernel_type, signature)
            if self._has_duration(position):
                # A duration that no history has would be lost.
                is_known = histories.has_duration(run_id, row)
            else:
                is_known = not run_id or histories.has_row(run_id, row)
            if is_known:
                known.append(position)
        self._merged = TableUpdate(kernel_type, without_measurement(kernel_type, frame, known))

    def _has_duration(self, position: int) -> bool:
        return valid_duration(self._durations[position]) is not None

    def apply(self, records: TypeRecords, mode: UpdateMode, order: RunOrder) -> None:
        here = TypeRecords(self._without_pruned(records.own), self._without_pruned(records.of_siblings))
        changes = self._merged.apply(here, append=True, update_siblings=mode.adds_rows, order=order)
        self._added |= changes.appended

    def _without_pruned(self, records: Mapping[str, Record]) -> dict[str, Record]:
        gone = self._pruned_signatures.difference(self._merged.positions)
        return {signature: record for signature, record in records.items() if signature not in gone}

    def write(self, database: Database, rebuilt: RebuiltRows) -> None:
        before, kernel_type = self._before.frame, self._before.kernel_type
        after = self._merged.rows.frame()
        there = after.iloc[: len(before)]
        same = before.reindex(columns=after.columns, fill_value="").to_numpy() == there.to_numpy()
        changed = [position for position, is_same in enumerate(same.all(axis=1)) if not is_same]
        if not changed and not self._added:
            return
        try:
            self._keep_replaced(database, changed)
            database.write(RowTable(kernel_type, self._before.path, after))
        except OpAtlasError as error:
            rebuilt.problems.append(str(error))
            return
        rebuilt.changed[kernel_type] += len(changed)
        rebuilt.added[kernel_type] += len(self._added)

    def _keep_replaced(self, database: Database, changed: list[int]) -> None:
        """Saves the rows whose durations are replaced, by the run of the new duration."""
        kernel_type, rows = self._before.kernel_type, self._merged.rows
        durations, run_ids = rows[duration_columns(kernel_type)[0]], rows[RUN_ID]
        lost: dict[str, list[int]] = {}
        for position in changed:
            if self._has_duration(position) and durations[position] != self._durations[position]:
                lost.setdefault(run_ids[position], []).append(position)
        for run_id, positions in lost.items():
            save_replaced(database, run_id, kernel_type, self._before.frame.iloc[positions])


def _open_table(
    database: Database, histories: Histories, kernel_type: str, rebuilt: RebuiltRows
) -> _RebuiltTable | None:
    """Returns a table for the rebuild; None, with a problem, if it cannot be read."""
    try:
        return _RebuiltTable(database.read_or_empty(kernel_type), histories, _pruned_signatures(database, kernel_type))
    except OpAtlasError as error:
        rebuilt.problems.append(f"{error} (not rebuilt)")
        return None


def _pruned_signatures(database: Database, kernel_type: str) -> frozenset[str]:
    """Returns the signatures of the pruned rows that have a duration. Raises OpAtlasError."""
    path = pruned_path(database, kernel_type)
    if not path.exists():
        return frozenset()
    frame = read_frame(path, kernel_type)
    durations = map(valid_duration, column_cells(frame, duration_columns(kernel_type)[0]))
    pruned = zip(signatures(kernel_type, frame), durations, strict=True)
    return frozenset(signature for signature, duration in pruned if duration is not None)
