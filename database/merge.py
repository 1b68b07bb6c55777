"""Records into CSVs: what an update mode does with each, and nothing lost.

Merging the same records twice gives the same files, so a merge that was cut off is simply done
again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import pandas as pd

from database.record import Measurement, Record
from database.schema import (
    AVERAGE,
    BASE,
    CACHE_STATE,
    INSTRUMENT,
    MICROBENCH_DEVICE_KERNELS,
    MICROBENCH_MEDIAN,
    MICROBENCH_MIN,
    MICROBENCH_SAMPLES,
    MICROBENCH_STD,
    PROFILING_AVERAGE,
    RUN_ID,
    STATUS,
    STATUS_REASON,
    Status,
    in_contract_order,
    microbench_counter,
)
from database.signature import signatures
from database.statistics import valid_duration
from database.store import Database, Table, read_frame, write_frame

#: Decimals of a stored duration: a tenth of a nanosecond, below what any clock here resolves.
_DECIMALS = 4
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
    """What became of the rows that records were about, by kernel type and signature.

    Attributes:
        updated: rows whose duration was measured anew.
        added: rows that were not there and were appended.
        marked: rows that only got a status; their durations are what they were.
        unchanged: rows whose record had been merged before.
        unmatched: records without a row that the mode does not append.
        pruned: rows that were moved to the pruned folder, with the reason.
    """

    updated: list[RowName] = field(default_factory=list)
    added: list[RowName] = field(default_factory=list)
    marked: list[RowName] = field(default_factory=list)
    unchanged: list[RowName] = field(default_factory=list)
    unmatched: list[RowName] = field(default_factory=list)
    pruned: list[RowName] = field(default_factory=list)


def has_duration(row: Mapping[str, str]) -> bool:
    """Whether the microbench or the profiling duration of a row is valid."""
    return any(valid_duration(row.get(column, "")) is not None for column in (AVERAGE, PROFILING_AVERAGE))


def merge(database: Database, records: Iterable[Record], mode: UpdateMode, *, prune: bool) -> MergeResult:
    """Merges records into the CSVs of a database, one file at a time, each replaced in one step.

    Args:
        records: of any kernel types; of several about one row, the last counts.
        mode: whether rows that are not there are appended (all) or reported (missing-only).
        prune: whether rows that these records are about, and that have no valid duration now, are
            moved to `pruned/`.

    Raises:
        OpAtlasError: a file that cannot be read or written. What was merged before it stays.
    """
    by_type: dict[str, dict[str, Record]] = {}
    for record in records:
        by_type.setdefault(record.kernel_type, {})[record.signature] = record
    result = MergeResult()
    with database.lock():
        for kernel_type, latest in by_type.items():
            _merge_table(database, kernel_type, latest, mode, prune, result)
    return result


def _merge_table(
    database: Database, kernel_type: str, records: dict[str, Record], mode: UpdateMode, prune: bool, result: MergeResult
) -> None:
    path = database.csv_path(kernel_type)
    if path.exists():
        table = database.read(kernel_type)
    else:
        table = Table(kernel_type, path, pd.DataFrame({column: pd.Series(dtype=str) for column in BASE}))
    known = signatures(kernel_type, table.frame)
    positions: dict[str, list[int]] = {}
    for position, signature in enumerate(known):
        positions.setdefault(signature, []).append(position)
    missing = [record for signature, record in records.items() if signature not in positions]
    appended = [record for record in missing if mode is UpdateMode.ALL and record.status is Status.MEASURED]
    rows = _Cells(table.frame, [record.cells for record in appended])
    for offset, record in enumerate(appended):
        positions[record.signature] = [len(known) + offset]
    changed = bool(appended)
    added = {record.signature for record in appended}
    result.unmatched += [RowName(kernel_type, r.signature) for r in missing if r.signature not in added]
    for signature, record in records.items():
        if signature in positions:
            row_changed = [_apply(rows, position, record) for position in positions[signature]]
            changed |= any(row_changed)
            outcome = _outcome(result, record, is_new=signature in added, changed=any(row_changed))
            outcome.append(RowName(kernel_type, signature))
    pruned = _to_prune(rows, positions, records) if prune else []
    frame = rows.frame()
    if pruned:
        gone = frame.iloc[pruned]
        _append_pruned(database, kernel_type, gone.assign(**{PRUNED_REASON: gone[STATUS_REASON].to_list()}))
        frame = frame.drop(index=frame.index[pruned])
        result.pruned += [RowName(kernel_type, signatures(kernel_type, gone.iloc[[i]])[0]) for i in range(len(pruned))]
    if changed or pruned:
        database.write(Table(kernel_type, path, frame))


class _Cells:
    """A table whose touched columns are lists; the others stay as they were read."""

    def __init__(self, frame: pd.DataFrame, appended: Sequence[Mapping[str, str]]) -> None:
        self._names_at_start = [str(name) for name in frame.columns]
        if appended:
            rows = pd.DataFrame([dict(row) for row in appended], dtype=str)
            frame = pd.concat([frame, rows], ignore_index=True).fillna("")
        self._frame = frame
        self._untouched = {str(name) for name in frame.columns}
        self._touched: dict[str, list[str]] = {}

    def get(self, position: int, column: str) -> str:
        cells = self._cells(column)
        return cells[position] if cells else ""

    def set(self, position: int, column: str, cell: str) -> bool:
        """Sets a cell, in a new column if need be; whether that changed anything."""
        cells = self._cells(column)
        if not cells:
            if not cell:
                return False
            cells = self._touched[column] = [""] * len(self._frame)
        if cells[position] == cell:
            return False
        cells[position] = cell
        return True

    def frame(self) -> pd.DataFrame:
        """The table; columns that were there keep their order, new ones follow in the contract's."""
        columns: dict[str, Any] = {str(name): self._frame[name] for name in self._frame.columns}
        columns |= self._touched
        new = [name for name in columns if name not in self._names_at_start]
        if set(self._names_at_start) <= set(BASE):
            order = in_contract_order(columns)
        else:
            order = [*self._names_at_start, *in_contract_order(new)]
        frame: pd.DataFrame = pd.DataFrame({name: columns[name] for name in order}, dtype=str)
        return frame

    def _cells(self, column: str) -> list[str] | None:
        cells = self._touched.get(column)
        if cells is None and column in self._untouched:
            cells = self._touched[column] = self._frame[column].tolist()
        return cells


def _apply(rows: _Cells, position: int, record: Record) -> bool:
    """Brings one row up to date with its record; whether that changed anything."""
    if record.measurement is not None:
        cells = _measured_cells(record.measurement)
        cells |= {STATUS: record.status.value, STATUS_REASON: "", RUN_ID: record.run_id}
    else:
        reason = record.reason
        cells = {STATUS: record.status.value}
        if valid_duration(rows.get(position, AVERAGE)) is None:
            cells[RUN_ID] = record.run_id
        else:
            # The run id stays with the duration that it accounts for.
            reason = f"{reason} [run {record.run_id}]"
        cells[STATUS_REASON] = reason
    changed = [rows.set(position, column, cell) for column, cell in cells.items()]
    return any(changed)


def _measured_cells(measurement: Measurement) -> dict[str, str]:
    summary = measurement.summary
    cells = {
        AVERAGE: _microseconds(summary.mean_us),
        MICROBENCH_MEDIAN: _microseconds(summary.median_us),
        MICROBENCH_MIN: _microseconds(summary.min_us),
        MICROBENCH_STD: _microseconds(summary.std_us),
        MICROBENCH_SAMPLES: str(summary.count),
        MICROBENCH_DEVICE_KERNELS: "" if measurement.device_kernels is None else str(measurement.device_kernels),
        CACHE_STATE: measurement.cache_state,
        INSTRUMENT: measurement.instrument,
    }
    cells |= {microbench_counter(name): repr(value) for name, value in measurement.counters.items()}
    return cells


def _microseconds(value: float) -> str:
    return f"{value:.{_DECIMALS}f}"


def _outcome(result: MergeResult, record: Record, *, is_new: bool, changed: bool) -> list[RowName]:
    if is_new:
        return result.added
    if not changed:
        return result.unchanged
    return result.updated if record.measurement is not None else result.marked


def _to_prune(rows: _Cells, positions: Mapping[str, list[int]], records: Iterable[str]) -> list[int]:
    return sorted(
        position
        for signature in records
        for position in positions.get(signature, ())
        if not any(valid_duration(rows.get(position, column)) for column in (AVERAGE, PROFILING_AVERAGE))
    )


def _append_pruned(database: Database, kernel_type: str, rows: pd.DataFrame) -> None:
    """Adds rows to the file of pruned ones, each signature once, the newest reason winning."""
    path = database.pruned_dir / f"{kernel_type}.csv"
    if path.exists():
        older = read_frame(path)
        new = set(signatures(kernel_type, rows))
        kept = [signature not in new for signature in signatures(kernel_type, older)]
        rows = pd.concat([older[kept], rows], ignore_index=True).fillna("")
    write_frame(rows, path)
