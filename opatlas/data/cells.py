"""The cells of a table: columns with durations, the cells that a record fills, and edits by column."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import pyarrow as pa

from opatlas.data.csv_files import text_column
from opatlas.row import columns as col
from opatlas.row.communication import BY_KERNEL_TYPE, bandwidth_gbps, row_kind
from opatlas.row.record import Measurement, Record
from opatlas.row.table import RowTable

#: Decimals of a stored duration in microseconds: finer than any clock here.
_DECIMALS = 4
#: Maximum number of names in a cell of Kernel Names.
_MOST_KERNEL_NAMES = 5


def stored_us(record: Record) -> float:
    """Returns the duration of a measured row in microseconds.

    It is the mean of a kernel's samples without the outliers, and the median of a message's samples.
    """
    assert record.measurement is not None
    return row_kind(record.kernel_type).duration_us(record.measurement.samples_us)


def duration_cells(record: Record) -> dict[str, str]:
    """Returns the cells about the duration of a measured row; none for another row."""
    measurement = record.measurement
    if measurement is None:
        return {}
    summary, verdict, execution = measurement.summary, measurement.verdict, measurement.execution
    names, total = execution.kernel_names, measurement.total_elements
    shown_names = " + ".join(names[:_MOST_KERNEL_NAMES])
    if len(names) > _MOST_KERNEL_NAMES:
        shown_names += f" + ... ({len(names)} in all)"
    return {
        **_average_cells(record, summary.median_us),
        col.MICROBENCH_MIN: microseconds(summary.min_us),
        # The standard deviation of one sample is unknown, not 0.
        col.MICROBENCH_STD: microseconds(summary.std_us) if summary.count > 1 else "",
        col.MICROBENCH_SAMPLES: str(summary.count),
        col.MICROBENCH_DEVICE_KERNELS: "" if measurement.device_kernels is None else str(measurement.device_kernels),
        col.MICROBENCH_HELPER_KERNELS: helpers_cell(measurement.helper_kernels),
        col.CACHE_STATE: measurement.cache_state,
        col.INSTRUMENT: measurement.instrument,
        col.QUALITY: verdict.quality.value,
        col.QUALITY_REASON: verdict.reason,
        col.ASSUMPTIONS: "; ".join(measurement.assumptions),
        col.CHECKED_ELEMENTS: f"{measurement.checked_elements}/{total}" if total else "",
        col.STAND_IN: measurement.stand_in,
        col.IMPLEMENTATION: execution.implementation,
        col.KERNEL_NAMES: shown_names,
        col.SPAN: "" if execution.span_us is None else microseconds(execution.span_us),
        col.OUTPUTS_MISSING: "; ".join(map(str, execution.outputs_missing)),
        col.CONVERSIONS: "; ".join(execution.conversions),
        col.MAX_ERROR: "" if execution.max_error is None else f"{execution.max_error:.3g}",
        col.SET_UP: "" if execution.set_up_s is None else f"{execution.set_up_s:.3f}",
        **_comparison_cells(measurement),
        **{col.microbench_counter(name): repr(value) for name, value in measurement.counters.items()},
        col.RUN_ID: record.run_id,
    }


def _comparison_cells(measurement: Measurement) -> dict[str, str]:
    """Returns the cells about the rounds with the baseline."""
    ratios, rounds = measurement.ratios, measurement.rounds
    control = rounds[0].control if rounds else None
    return {
        col.SPEED_UP: "" if ratios is None else f"{ratios.ratio:.4f}",
        col.SPEED_UP_LOW: "" if ratios is None else f"{ratios.low:.4f}",
        col.SPEED_UP_HIGH: "" if ratios is None else f"{ratios.high:.4f}",
        col.SPEED_UP_ROUNDS: ";".join(str(len(each.kernel_us)) for each in rounds),
        col.SPEED_UP_AGAINST: measurement.against,
        col.CONTROL_RATIO: "" if control is None else f"{control.ratio:.4f}",
    }


def _average_cells(record: Record, median_us: float) -> dict[str, str]:
    """Returns the stored duration; of a message with its bandwidths."""
    if not row_kind(record.kernel_type).is_message:
        return {col.AVERAGE: microseconds(stored_us(record)), col.MICROBENCH_MEDIAN: microseconds(median_us)}
    message_bytes, num_devices = int(record.cells[col.MESSAGE_BYTES]), int(record.cells[col.NUM_DEVICES])
    bus_gbps = BY_KERNEL_TYPE[record.kernel_type].bus_bandwidth_gbps(message_bytes, num_devices, median_us)
    return {
        col.DURATION: microseconds(stored_us(record)),
        # Six digits: the bandwidth of a small message is a small number.
        col.BANDWIDTH: f"{bandwidth_gbps(message_bytes, median_us):.6g}",
        col.BUS_BANDWIDTH: f"{bus_gbps:.6g}",
    }


def status_cells(record: Record) -> dict[str, str]:
    """Returns the cells about the status of a row, and the largest error of a judged kernel."""
    launched, remark = record.launched_record(), ""
    if launched is not None:
        other = launched.signature != record.signature
        remark = f"ran as {launched.kernel_type}" + (f" on {launched.cells.get(col.INPUT_SHAPES, '')}" if other else "")
    return {
        col.STATUS: record.status.value,
        col.STATUS_REASON: "; ".join(filter(None, (remark, record.reason))),
        col.STATUS_RUN_ID: record.run_id,
        **{name: record.judged.get(name, "") for name in (*col.JUDGED, col.MAX_ERROR)},
    }


def helpers_cell(helper_kernels: Mapping[str, float]) -> str:
    """Returns a cell of MicroBench Helper Kernels: `Cast 2.1000; TransQuantParamV2 1.2000`."""
    return "; ".join(f"{kernel_type} {microseconds(us)}" for kernel_type, us in helper_kernels.items())


def microseconds(value: float) -> str:
    """Returns a duration in microseconds as a cell."""
    return f"{value:.{_DECIMALS}f}"


Key = TypeVar("Key", bound=Hashable)


def positions_by_key(keys: Iterable[Key]) -> dict[Key, list[int]]:
    """Returns the positions of the rows with each key, such as a signature."""
    positions: dict[Key, list[int]] = {}
    for position, key in enumerate(keys):
        positions.setdefault(key, []).append(position)
    return positions


class TableEdit:
    """A table whose cells are edited by column. Only columns that are accessed become lists."""

    def __init__(self, table: RowTable) -> None:
        self._table = table
        self._taken: dict[str, list[str]] = {}
        self._changed: set[str] = set()
        self._appended: list[Mapping[str, str]] = []
        self._names = dict.fromkeys(table.columns)

    @property
    def columns(self) -> Collection[str]:
        """The columns of the table, and those that were read or changed since."""
        return self._names.keys()

    def __len__(self) -> int:
        return len(self._table) + len(self._appended)

    def __getitem__(self, name: str) -> list[str]:
        """Returns the cells of a column, which `set_cells` alone changes; empty cells if the column is missing."""
        cells = self._taken.get(name)
        if cells is None:
            cells = [*self._table.cells(name), *(row.get(name, "") for row in self._appended)]
            self._taken[name] = cells
            self._names[name] = None
        return cells

    def set_cells(self, position: int, cells: Mapping[str, str]) -> bool:
        """Changes cells of a row, by column. Returns whether a cell differed."""
        changed = False
        for name, cell in cells.items():
            column = self._taken.get(name) or self[name]
            if column[position] != cell:
                column[position] = cell
                self._changed.add(name)
                changed = True
        return changed

    def empty(self, positions: Sequence[int], columns: Iterable[str]) -> None:
        """Empties the cells of some rows in some columns."""
        for name in columns:
            cells = self[name]
            self._changed.add(name)
            for position in positions:
                cells[position] = ""

    def changed(self) -> list[int]:
        """Returns the positions of the rows of which a cell differs from what it was, without appended rows."""
        found: set[int] = set()
        for name in self._changed:
            pairs = zip(self._table.cells(name), self._taken[name], strict=False)
            found.update(position for position, (before, after) in enumerate(pairs) if before != after)
        return sorted(found)

    def append(self, row: Mapping[str, str]) -> int:
        """Adds a row at the end; returns its position."""
        for name, cells in self._taken.items():
            cells.append(row.get(name, ""))
        self._appended.append(row)
        self._names.update(dict.fromkeys(row))
        return len(self) - 1

    def table(self) -> RowTable:
        """Returns the changed table: columns keep their order, new non-empty columns are inserted at their group.

        Raises:
            TableError: a cell is not Unicode text.
        """
        table, path = self._table, self._table.path
        held = [name for name, cells in self._taken.items() if any(cells)]
        appended_names = dict.fromkeys(name for row in self._appended for name in row)
        columns = {}
        for name in col.insert_columns(table.columns, [*held, *appended_names]):
            if name in self._changed or name not in table.columns:
                columns[name] = pa.chunked_array([text_column(name, self[name], path)])
            else:
                added = [text_column(name, [row.get(name, "") for row in self._appended], path)]
                column = table.arrow.column(name)
                chunks = [*column.chunks, *(each.cast(column.type) for each in added if self._appended)]
                columns[name] = pa.chunked_array(chunks, column.type)
        return RowTable(table.kernel_type, path, pa.table(columns))
