"""The cells of a table: which columns hold a duration, what a record fills, and edits by column."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from opatlas.model.communication import BY_KERNEL_TYPE, bandwidth_gbps, is_communication
from opatlas.model.quality import Summary
from opatlas.model.record import Measurement, Record
from opatlas.model.schema import (
    ASSUMPTIONS,
    AVERAGE,
    BANDWIDTH,
    BASE,
    BUS_BANDWIDTH,
    CACHE_STATE,
    CHECKED_ELEMENTS,
    CRASHES_IN_A_ROW,
    DURATION,
    INPUT_SHAPES,
    INSTRUMENT,
    MESSAGE,
    MESSAGE_BYTES,
    MICROBENCH_DEVICE_KERNELS,
    MICROBENCH_HELPER_KERNELS,
    MICROBENCH_MEDIAN,
    MICROBENCH_MIN,
    MICROBENCH_SAMPLES,
    MICROBENCH_STD,
    NUM_DEVICES,
    OUTPUT_SHAPES,
    PROFILING_AVERAGE,
    QUALITY,
    QUALITY_REASON,
    RUN_ID,
    STAND_IN,
    STATUS,
    STATUS_GROUP,
    STATUS_REASON,
    Status,
    insert_columns,
    is_microbench_column,
)
from opatlas.model.slots import EMPTY_SHAPE

#: Decimals of a stored duration: a tenth of a nanosecond, below what any clock here resolves.
_DECIMALS = 4


def identity_columns(kernel_type: str) -> Sequence[str]:
    """What a new file of a kernel type has at least."""
    return MESSAGE if is_communication(kernel_type) else BASE


def duration_columns(kernel_type: str) -> Sequence[str]:
    """Columns of which any may hold the duration of a row, whoever wrote it; OpAtlas writes the first one."""
    return (DURATION, AVERAGE, PROFILING_AVERAGE) if is_communication(kernel_type) else (AVERAGE, PROFILING_AVERAGE)


def stored_us(kernel_type: str, summary: Summary) -> float:
    """The duration of a row in microseconds: of a kernel the mean of its samples, of a message their median."""
    return summary.median_us if is_communication(kernel_type) else summary.mean_us


def is_measured_column(kernel_type: str, column: str) -> bool:
    """Whether a column of a table holds what a replay found out of a row: durations, how they were taken, status."""
    of_message = is_communication(kernel_type)
    if of_message and column in (DURATION, BANDWIDTH, BUS_BANDWIDTH):
        return True
    return column in STATUS_GROUP or (is_microbench_column(column) and not (of_message and column == AVERAGE))


def measured_cells(record: Record) -> dict[str, str]:
    """What a measurement fills of a row, by column, but for its counters; alike for all records of a kernel type."""
    measurement = record.measurement
    assert measurement is not None
    summary, verdict = measurement.summary, measurement.verdict
    durations = _of_message if is_communication(record.kernel_type) else _of_kernel
    return {
        **durations(record, summary),
        MICROBENCH_MIN: microseconds(summary.min_us),
        # One sample has no spread; 0 would say that it has none.
        MICROBENCH_STD: microseconds(summary.std_us) if summary.count > 1 else "",
        MICROBENCH_SAMPLES: str(summary.count),
        MICROBENCH_DEVICE_KERNELS: "" if measurement.device_kernels is None else str(measurement.device_kernels),
        MICROBENCH_HELPER_KERNELS: helpers_cell(measurement.helper_kernels),
        CACHE_STATE: measurement.cache_state,
        INSTRUMENT: measurement.instrument,
        QUALITY: verdict.quality.value,
        QUALITY_REASON: verdict.reason,
        ASSUMPTIONS: "; ".join(measurement.assumptions),
        CHECKED_ELEMENTS: _checked(measurement),
        STAND_IN: measurement.stand_in,
        STATUS: Status.MEASURED.value,
        STATUS_REASON: _remark(record),
        CRASHES_IN_A_ROW: crashes_cell(record),
        RUN_ID: record.run_id,
    }


def _checked(measurement: Measurement) -> str:
    """`4096/1048576`; empty where nothing was compared."""
    total = measurement.total_elements
    return f"{measurement.checked_elements}/{total}" if total else ""


def helpers_cell(helper_kernels: Mapping[str, float]) -> str:
    """Of MicroBench Helper Kernels: `Cast 2.1000; TransQuantParamV2 1.2000`."""
    return "; ".join(f"{kernel_type} {microseconds(us)}" for kernel_type, us in helper_kernels.items())


def crashes_cell(record: Record) -> str:
    """Of Crashes In A Row."""
    return str(record.crashes_in_a_row or "")


def microseconds(value: float) -> str:
    """A duration as a cell."""
    return f"{value:.{_DECIMALS}f}"


def _of_kernel(record: Record, summary: Summary) -> dict[str, str]:
    return {
        AVERAGE: microseconds(stored_us(record.kernel_type, summary)),
        MICROBENCH_MEDIAN: microseconds(summary.median_us),
    }


def _of_message(record: Record, summary: Summary) -> dict[str, str]:
    message_bytes, num_devices = int(record.cells[MESSAGE_BYTES]), int(record.cells[NUM_DEVICES])
    gbps = bandwidth_gbps(message_bytes, summary.median_us)
    bus_gbps = BY_KERNEL_TYPE[record.kernel_type].bus_bandwidth_gbps(message_bytes, num_devices, summary.median_us)
    return {
        DURATION: microseconds(stored_us(record.kernel_type, summary)),
        # Six digits at any size: a kilobyte is slow, and its bandwidth a small number.
        BANDWIDTH: f"{gbps:.6g}",
        BUS_BANDWIDTH: f"{bus_gbps:.6g}",
    }


def _remark(record: Record) -> str:
    """What the Status Reason of a measured row says: nothing, where its own call was measured."""
    what_ran = record.launched_record()
    if what_ran is None:
        return record.reason
    ran_as = f"ran as {what_ran.kernel_type}"
    if what_ran.signature != record.signature:
        ran_as += f" on {what_ran.cells.get(INPUT_SHAPES, '')}"
    return "; ".join(text for text in (ran_as, record.reason) if text)


Key = TypeVar("Key", bound=Hashable)


def positions_by_key(keys: Iterable[Key]) -> dict[Key, list[int]]:
    """The positions of the rows that have a key in common (a signature, say), by that, in the order of the rows."""
    positions: dict[Key, list[int]] = {}
    for position, key in enumerate(keys):
        positions.setdefault(key, []).append(position)
    return positions


class TableEdit:
    """Columns that are asked for become lists; the others stay as they were read."""

    def __init__(self, frame: pd.DataFrame, columns: Sequence[str] | None = None) -> None:
        """
        Args:
            frame: text cells of the rows that are there.
            columns: the columns of the result, where they are more than those of `frame`.
        """
        self._frame = frame
        self._columns = [str(name) for name in (frame.columns if columns is None else columns)]
        self._taken: dict[str, list[str]] = {}
        self._appended: list[Mapping[str, str]] = []

    def __len__(self) -> int:
        return len(self._frame) + len(self._appended)

    def __getitem__(self, name: str) -> list[str]:
        """The cells of a column, to be read or changed in place; empty ones where there is no such column."""
        cells = self._taken.get(name)
        if cells is None:
            there = name in self._frame.columns
            cells = self._frame[name].tolist() if there else [""] * len(self._frame)
            cells += [row.get(name, "") for row in self._appended]
            self._taken[name] = cells
        return cells

    def append(self, row: Mapping[str, str]) -> int:
        """Adds a row at the end; gives its position.

        A shape cell with nothing in it, of a lone 0-dim tensor, becomes `""`, as profilers have it: pandas reads an
        empty cell as a missing one, and msmodeling's loader fails at that.
        """
        row = {**row, **{name: EMPTY_SHAPE for name in (INPUT_SHAPES, OUTPUT_SHAPES) if row.get(name) == ""}}
        for name, cells in self._taken.items():
            cells.append(row.get(name, ""))
        self._appended.append(row)
        return len(self) - 1

    def frame(self) -> pd.DataFrame:
        """The table with its changes: no column lost, none moved, new ones that hold something where their group is."""
        held = [name for name, cells in self._taken.items() if any(cells)]
        appended_names = dict.fromkeys(name for row in self._appended for name in row)
        columns = insert_columns(self._columns, [*held, *appended_names])
        cells = {name: self._taken[name] for name in columns if name in self._taken}
        # Plain objects: a hundred columns of pandas' own strings take ten times as long to make.
        appended: dict[str, Any] = {
            name: np.array([row.get(name, "") for row in self._appended], dtype=object) for name in columns
        }
        if self._frame.empty:
            only: pd.DataFrame = pd.DataFrame({name: cells.get(name, appended[name]) for name in columns}, dtype=object)
            return only
        changed = {name: column[: len(self._frame)] for name, column in cells.items()}
        frame: pd.DataFrame = self._frame.assign(**changed).reindex(columns=columns, fill_value="")
        if self._appended:
            added = pd.DataFrame(
                {name: cells[name][len(self._frame) :] if name in cells else appended[name] for name in columns}
            )
            frame = pd.concat([frame, added.astype(str)], ignore_index=True)
        return frame
