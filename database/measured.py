"""What the cells of a measured row say: of a kernel, and of a collective."""

from __future__ import annotations

from collections.abc import Sequence

from database.communication import BY_KERNEL_TYPE, bandwidth_gbps, is_communication
from database.record import Measurement, Record
from database.schema import (
    AVERAGE,
    BANDWIDTH,
    BASE,
    BUS_BANDWIDTH,
    CACHE_STATE,
    CRASHES_IN_A_ROW,
    DURATION,
    INPUT_SHAPES,
    INSTRUMENT,
    MESSAGE,
    MESSAGE_BYTES,
    MICROBENCH_DEVICE_KERNELS,
    MICROBENCH_MEDIAN,
    MICROBENCH_MIN,
    MICROBENCH_SAMPLES,
    MICROBENCH_STD,
    NUM_DEVICES,
    PROFILING_AVERAGE,
    RUN_ID,
    STATUS,
    STATUS_REASON,
    Status,
)

#: Decimals of a stored duration: a tenth of a nanosecond, below what any clock here resolves.
_DECIMALS = 4

_OF_BOTH = (
    MICROBENCH_MIN,
    MICROBENCH_STD,
    MICROBENCH_SAMPLES,
    MICROBENCH_DEVICE_KERNELS,
    CACHE_STATE,
    INSTRUMENT,
    STATUS,
    STATUS_REASON,
    CRASHES_IN_A_ROW,
    RUN_ID,
)


def identity_columns(kernel_type: str) -> Sequence[str]:
    """What a new file of a kernel type has at least."""
    return MESSAGE if is_communication(kernel_type) else BASE


def duration_columns(kernel_type: str) -> Sequence[str]:
    """Columns of which any may hold the duration of a row, whoever wrote it; OpAtlas writes the first one."""
    return (DURATION, AVERAGE, PROFILING_AVERAGE) if is_communication(kernel_type) else (AVERAGE, PROFILING_AVERAGE)


def measured_columns(kernel_type: str) -> Sequence[str]:
    """What a measurement fills of a row, but for its counters."""
    if is_communication(kernel_type):
        return (DURATION, BANDWIDTH, BUS_BANDWIDTH, *_OF_BOTH)
    return (AVERAGE, MICROBENCH_MEDIAN, *_OF_BOTH)


def measured_cells(record: Record) -> tuple[str, ...]:
    """Cells of `measured_columns`."""
    measurement = record.measurement
    assert measurement is not None
    summary = measurement.summary
    return (
        *(_of_message(record, summary.median_us) if is_communication(record.kernel_type) else _of_kernel(measurement)),
        microseconds(summary.min_us),
        # One sample has no spread; 0 would say that it has none.
        microseconds(summary.std_us) if summary.count > 1 else "",
        str(summary.count),
        "" if measurement.device_kernels is None else str(measurement.device_kernels),
        measurement.cache_state,
        measurement.instrument,
        Status.MEASURED.value,
        _remark(record),
        crashes_cell(record),
        record.run_id,
    )


def crashes_cell(record: Record) -> str:
    """Of Crashes In A Row."""
    return str(record.crashes_in_a_row or "")


def microseconds(value: float) -> str:
    """A duration as a cell."""
    return f"{value:.{_DECIMALS}f}"


def _of_kernel(measurement: Measurement) -> tuple[str, str]:
    summary = measurement.summary
    return microseconds(summary.mean_us), microseconds(summary.median_us)


def _of_message(record: Record, duration_us: float) -> tuple[str, str, str]:
    message_bytes, num_devices = int(record.cells[MESSAGE_BYTES]), int(record.cells[NUM_DEVICES])
    bus_gbps = BY_KERNEL_TYPE[record.kernel_type].bus_bandwidth_gbps(message_bytes, num_devices, duration_us)
    # Six digits at any size: a kilobyte is slow, and its bandwidth a small number.
    gbps = f"{bandwidth_gbps(message_bytes, duration_us):.6g}"
    return microseconds(duration_us), gbps, f"{bus_gbps:.6g}"


def _remark(record: Record) -> str:
    """What the Status Reason of a measured row says: nothing, where its own call was measured."""
    what_ran = record.of_what_ran()
    if what_ran is None:
        return record.reason
    ran_as = f"ran as {what_ran.kernel_type}"
    if what_ran.signature != record.signature:
        ran_as += f" on {what_ran.cells.get(INPUT_SHAPES, '')}"
    return "; ".join(text for text in (ran_as, record.reason) if text)
