"""What one database has of a row: the status, the duration, its spread, and what ran."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from opatlas.combine.pool import run_medians
from opatlas.data.cells import duration_cells, duration_columns, status_cells
from opatlas.data.database import Database
from opatlas.row.columns import (
    AVERAGE,
    CACHE_STATE,
    CONVERSIONS,
    IMPLEMENTATION,
    INSTRUMENT,
    KERNEL_NAMES,
    MICROBENCH_DEVICE_KERNELS,
    MICROBENCH_MEDIAN,
    MICROBENCH_SAMPLES,
    MICROBENCH_STD,
    OUTPUTS_MISSING,
    POOLED_RUN_DURATIONS,
    PROFILING_AVERAGE,
    PROFILING_MEDIAN,
    PROFILING_POPULATIONS,
    PROFILING_SAMPLES,
    PROFILING_STD,
    QUALITY,
    RUN_ID,
    SPAN,
    STAND_IN,
    STATUS,
    STATUS_REASON,
    Status,
)
from opatlas.row.quality import NOISE_LIMIT, Quality, is_composition, valid_duration
from opatlas.row.record import Record
from opatlas.row.signature import column_cells, signatures
from opatlas.show.formats import percent
from opatlas.text import parse_real, parse_whole

#: The status of a row that a database lacks, or that was never run.
MISSING = "missing"
#: A call with a longer span, as a multiple of the sum of its kernels, waits for the host.
_HOST_BOUND = 1.2
#: Samples with a larger relative standard deviation describe no duration.
_MOST_NOISE = 0.20


@dataclass(frozen=True)
class ComparedCall:
    """A row in one database.

    Attributes:
        status: a value of Status, or MISSING.
        reason: the Status Reason.
        sum_us: the median of the kernels' sum in microseconds; None unless the status is measured.
        span_us: median time from the start of the first to the end of the last kernel; None if it is not known.
        kernels: the number of device kernels; None if it is not known.
        noise: standard deviation / mean of the samples; None if it is not known.
        samples: number of samples; None if it is not known.
        quality, cache_state, instrument, stand_in, implementation, kernel_names, outputs_missing, conversions: the
            cells of these columns.
        is_captured: whether a profiler of a model timed the call, and no replay.
        run_medians_us: the median of each run that the duration was pooled from; empty if it is that of one run.
    """

    status: str = MISSING
    reason: str = ""
    sum_us: float | None = None
    span_us: float | None = None
    kernels: int | None = None
    noise: float | None = None
    samples: int | None = None
    quality: str = ""
    cache_state: str = ""
    instrument: str = ""
    stand_in: str = ""
    implementation: str = ""
    kernel_names: str = ""
    outputs_missing: str = ""
    conversions: str = ""
    is_captured: bool = field(default=False, kw_only=True)
    run_medians_us: tuple[float, ...] = field(default=(), kw_only=True, compare=False)

    @property
    def is_measured(self) -> bool:
        """Whether the call has a duration."""
        return self.sum_us is not None

    @property
    def is_host_bound(self) -> bool:
        """Whether the device waits between the kernels of the call, so that its span is not the device's time."""
        return (
            (self.kernels or 0) > 1
            and self.sum_us is not None
            and self.span_us is not None
            and self.span_us > _HOST_BOUND * self.sum_us
        )

    @property
    def duration_us(self) -> float | None:
        """The span of several kernels, unless the call is host-bound; else the sum."""
        several = (self.kernels or 0) > 1 and self.span_us is not None and not self.is_host_bound
        return self.span_us if several and self.sum_us is not None else self.sum_us

    @property
    def is_composition(self) -> bool:
        """Whether several operators were timed in place of the row's kernel."""
        return is_composition(self.quality, self.stand_in)

    @property
    def is_partial(self) -> bool:
        """Whether outputs are missing, or inputs and results were converted outside the measured time."""
        return bool(self.outputs_missing or self.conversions)

    @property
    def variance_of_mean(self) -> float:
        """The squared relative error of the mean; a spread that is not known counts as NOISE_LIMIT."""
        noise = NOISE_LIMIT if self.noise is None else self.noise
        return noise**2 / (self.samples or 1)

    @property
    def why_ambiguous(self) -> str:
        """Why the samples describe no single duration: bimodal, throttled, or much noise; else ""."""
        quality = Quality.from_cell(self.quality)
        if quality in (Quality.BIMODAL, Quality.THROTTLED):
            return str(quality)
        return f"noise of {percent(self.noise, 0)}" if self.noise is not None and self.noise > _MOST_NOISE else ""


#: A row that a database does not have.
NO_CALL = ComparedCall()


def read_calls(folder: Path, kernel_type: str) -> dict[str, ComparedCall]:
    """Returns the rows of a kernel type by signature; of rows with equal signatures the first. Raises OpAtlasError."""
    frame = Database(folder).read_or_empty(kernel_type).frame
    columns = _replay_columns(kernel_type)
    calls = (_replayed(*cells) for cells in _rows(frame, columns))
    return _by_signature(zip(signatures(kernel_type, frame), calls, strict=True))


def read_captured_calls(folder: Path, kernel_type: str) -> dict[str, ComparedCall]:
    """Returns what captures tell of the rows of a kernel type, as `read_calls` does of replays."""
    frame = Database(folder).read_or_empty(kernel_type).frame
    calls = (_captured(*cells) for cells in _rows(frame, _CAPTURE_COLUMNS))
    return _by_signature(zip(signatures(kernel_type, frame), calls, strict=True))


def recorded_call(record: Record) -> ComparedCall:
    """Returns the call of a run's record."""
    if record.measurement is None:
        return ComparedCall(record.status.value, record.reason)
    cells = {**duration_cells(record), **status_cells(record)}
    return _replayed(*(cells.get(name, "") for name in _replay_columns(record.kernel_type)))


def _by_signature(named: Iterable[tuple[str, ComparedCall]]) -> dict[str, ComparedCall]:
    calls: dict[str, ComparedCall] = {}
    for signature, call in named:
        calls.setdefault(signature, call)
    return calls


def _replay_columns(kernel_type: str) -> tuple[str, ...]:
    return MICROBENCH_MEDIAN, duration_columns(kernel_type)[0], AVERAGE, *_REPLAY_COLUMNS


_REPLAY_COLUMNS = (
    MICROBENCH_STD,
    MICROBENCH_SAMPLES,
    MICROBENCH_DEVICE_KERNELS,
    SPAN,
    RUN_ID,
    POOLED_RUN_DURATIONS,
    STATUS,
    STATUS_REASON,
    QUALITY,
    CACHE_STATE,
    INSTRUMENT,
    STAND_IN,
    IMPLEMENTATION,
    KERNEL_NAMES,
    OUTPUTS_MISSING,
    CONVERSIONS,
)
_CAPTURE_COLUMNS = (PROFILING_MEDIAN, PROFILING_AVERAGE, PROFILING_STD, PROFILING_SAMPLES, PROFILING_POPULATIONS)


def _rows(frame: pd.DataFrame, columns: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yields the cells of some columns, row by row; "" for a column that is missing."""
    yield from zip(*(column_cells(frame, name) for name in columns), strict=True)


def _replayed(
    median: str, stored: str, mean: str, std: str, samples: str, kernels: str, span: str, run_id: str, *others: str
) -> ComparedCall:
    pooled, status, reason, *described = others
    found = Status.from_cell(status)
    duration_us = valid_duration(median) or valid_duration(stored)
    if found not in (None, Status.MEASURED) or duration_us is None:
        # A row that failed keeps an earlier duration, which says nothing about the failure.
        lost = found in (None, Status.MEASURED)
        return ComparedCall(MISSING if lost else str(found), reason)
    return ComparedCall(
        Status.MEASURED.value,
        reason,
        duration_us,
        valid_duration(span),
        parse_whole(kernels),
        _noise(std, valid_duration(mean) or duration_us),
        parse_whole(samples),
        *described,
        run_medians_us=_pooled_medians(run_id, pooled) if pooled else (),
    )


def _captured(median: str, mean: str, std: str, samples: str, populations: str) -> ComparedCall:
    duration_us = valid_duration(median) or valid_duration(mean)
    if duration_us is None:
        return NO_CALL
    return ComparedCall(
        Status.MEASURED.value,
        sum_us=duration_us,
        noise=_noise(std, valid_duration(mean) or duration_us),
        samples=parse_whole(samples),
        quality=Quality.BIMODAL.value if populations.strip() else "",
        is_captured=True,
    )


def _pooled_medians(run_id: str, cell: str) -> tuple[float, ...]:
    """Returns the medians of pooled runs; none if the row's duration was replaced since."""
    medians = run_medians(cell)
    return tuple(medians.values()) if run_id in medians else ()


def _noise(std: str, mean_us: float) -> float | None:
    std_us = parse_real(std)
    return std_us / mean_us if std_us is not None and std_us >= 0 else None
