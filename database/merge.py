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
    rows = _Columns(table.frame, [record.cells for record in appended])
    for offset, record in enumerate(appended):
        positions[record.signature] = [len(known) + offset]
    added = {record.signature for record in appended}
    result.unmatched += [RowName(kernel_type, r.signature) for r in missing if r.signature not in added]
    matched = [(position, record) for signature, record in records.items() for position in positions.get(signature, ())]
    changed = _set_measured(rows, [(p, r.measurement, r.run_id) for p, r in matched if r.measurement is not None])
    for position, record in matched:
        if record.measurement is None and _set_status(rows, position, record):
            changed.add(position)
    for signature, record in records.items():
        if signature in positions:
            row_changed = not changed.isdisjoint(positions[signature])
            outcome = _outcome(result, record, is_new=signature in added, changed=row_changed)
            outcome.append(RowName(kernel_type, signature))
    pruned = _to_prune(rows, positions, records) if prune else []
    if not changed and not appended and not pruned:
        return
    frame = rows.frame()
    if pruned:
        gone = frame.iloc[pruned]
        _append_pruned(database, kernel_type, gone.assign(**{PRUNED_REASON: gone[STATUS_REASON].to_list()}))
        frame = frame.drop(index=frame.index[pruned])
        result.pruned += [RowName(kernel_type, signature) for signature in signatures(kernel_type, gone)]
    database.write(Table(kernel_type, path, frame))


class _Columns:
    """A table whose touched columns are lists; the others stay as they were read."""

    def __init__(self, frame: pd.DataFrame, appended: Sequence[Mapping[str, str]]) -> None:
        self._names_at_start = [str(name) for name in frame.columns]
        if appended:
            rows = pd.DataFrame([dict(row) for row in appended], dtype=str)
            frame = pd.concat([frame, rows], ignore_index=True).fillna("")
        self._frame = frame
        self._touched: dict[str, list[str]] = {}

    def __getitem__(self, name: str) -> list[str]:
        """The cells of a column, to be changed in place; empty ones where the table lacks it."""
        cells = self._touched.get(name)
        if cells is None:
            there = name in self._frame.columns
            cells = self._touched[name] = self._frame[name].tolist() if there else [""] * len(self._frame)
        return cells

    def frame(self) -> pd.DataFrame:
        """The table; columns that were there keep their order, new ones that hold something follow."""
        columns: dict[str, Any] = {str(name): self._frame[name] for name in self._frame.columns}
        columns |= {name: cells for name, cells in self._touched.items() if name in columns or any(cells)}
        new = [name for name in columns if name not in self._names_at_start]
        if set(self._names_at_start) <= set(BASE):
            order = in_contract_order(columns)
        else:
            order = [*self._names_at_start, *in_contract_order(new)]
        frame: pd.DataFrame = pd.DataFrame({name: columns[name] for name in order}, dtype=str)
        return frame


def _set_measured(rows: _Columns, measured: Sequence[tuple[int, Measurement, str]]) -> set[int]:
    """Brings rows up to date with their measurement; the positions of those that changed."""
    changed: set[int] = set()
    if not measured:
        return changed
    # A column at a time: a session may have measured every row of a large table.
    positions = [position for position, _, _ in measured]
    values = zip(*[_measured_cells(measurement, run_id) for _, measurement, run_id in measured], strict=True)
    for name, cells in zip(_MEASURED_COLUMNS, values, strict=True):
        changed |= _set_column(rows[name], positions, cells)
    for name in {name for _, measurement, _ in measured for name in measurement.counters}:
        counted = [
            (position, measurement.counters[name])
            for position, measurement, _ in measured
            if name in measurement.counters
        ]
        changed |= _set_column(
            rows[microbench_counter(name)], [position for position, _ in counted], [repr(value) for _, value in counted]
        )
    return changed


def _set_column(column: list[str], positions: Sequence[int], cells: Sequence[str]) -> set[int]:
    changed = set()
    for position, cell in zip(positions, cells, strict=True):
        if column[position] != cell:
            column[position] = cell
            changed.add(position)
    return changed


def _set_status(rows: _Columns, position: int, record: Record) -> bool:
    """Marks a row that was not measured; its durations stay. Whether that changed anything."""
    cells = {STATUS: record.status.value, STATUS_REASON: record.reason}
    if valid_duration(rows[AVERAGE][position]) is None:
        cells[RUN_ID] = record.run_id
    else:
        # The run id stays with the duration that it accounts for.
        cells[STATUS_REASON] = f"{record.reason} [run {record.run_id}]"
    changed = [_set_column(rows[name], [position], [cell]) for name, cell in cells.items()]
    return any(changed)


_MEASURED_COLUMNS = (
    AVERAGE,
    MICROBENCH_MEDIAN,
    MICROBENCH_MIN,
    MICROBENCH_STD,
    MICROBENCH_SAMPLES,
    MICROBENCH_DEVICE_KERNELS,
    CACHE_STATE,
    INSTRUMENT,
    STATUS,
    STATUS_REASON,
    RUN_ID,
)


def _measured_cells(measurement: Measurement, run_id: str) -> tuple[str, ...]:
    """Cells of `_MEASURED_COLUMNS`."""
    summary = measurement.summary
    return (
        _microseconds(summary.mean_us),
        _microseconds(summary.median_us),
        _microseconds(summary.min_us),
        _microseconds(summary.std_us),
        str(summary.count),
        "" if measurement.device_kernels is None else str(measurement.device_kernels),
        measurement.cache_state,
        measurement.instrument,
        Status.MEASURED.value,
        "",
        run_id,
    )


def _microseconds(value: float) -> str:
    return f"{value:.{_DECIMALS}f}"


def _outcome(result: MergeResult, record: Record, *, is_new: bool, changed: bool) -> list[RowName]:
    if is_new:
        return result.added
    if not changed:
        return result.unchanged
    return result.updated if record.measurement is not None else result.marked


def _to_prune(rows: _Columns, positions: Mapping[str, list[int]], records: Iterable[str]) -> list[int]:
    return sorted(
        position
        for signature in records
        for position in positions.get(signature, ())
        if not any(valid_duration(rows[column][position]) for column in (AVERAGE, PROFILING_AVERAGE))
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
