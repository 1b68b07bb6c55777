"""What the cells of a measured row say: of a kernel, and of a collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from database.communication import BY_KERNEL_TYPE, bandwidth_gbps, is_communication
from database.record import Measurement, Record
from database.schema import (
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
    PROFILING_AVERAGE,
    QUALITY,
    QUALITY_REASON,
    RUN_ID,
    STAND_IN,
    STATUS,
    STATUS_GROUP,
    STATUS_REASON,
    Status,
    of_microbench,
)
from database.statistics import Summary

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
    return column in STATUS_GROUP or (of_microbench(column) and not (of_message and column == AVERAGE))


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
    what_ran = record.of_what_ran()
    if what_ran is None:
        return record.reason
    ran_as = f"ran as {what_ran.kernel_type}"
    if what_ran.signature != record.signature:
        ran_as += f" on {what_ran.cells.get(INPUT_SHAPES, '')}"
    return "; ".join(text for text in (ran_as, record.reason) if text)
