"""What one database has of a row: the status, the duration, its spread, and what ran."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from opatlas.model.quality import NOISE_LIMIT, Quality, is_composition, valid_duration
from opatlas.model.schema import (
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
    QUALITY,
    SPAN,
    STAND_IN,
    STATUS,
    STATUS_REASON,
    Status,
)
from opatlas.model.signature import signatures
from opatlas.store.cells import duration_columns
from opatlas.store.database import Database
from opatlas.text import parse_real, parse_whole

#: The status of a row that a database lacks, or that was never run.
MISSING = "missing"
#: A call with a longer span, as a multiple of the sum of its kernels, waits for the host.
_HOST_BOUND = 1.2


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
    def unsteady(self) -> str:
        """Why the duration describes no single state of the device: bimodal, throttled; else ""."""
        quality = Quality.from_cell(self.quality)
        return quality.value if quality in (Quality.BIMODAL, Quality.THROTTLED) else ""


#: A row that a database does not have.
NO_CALL = ComparedCall()


def read_calls(folder: Path, kernel_type: str) -> dict[str, ComparedCall]:
    """Returns the rows of a kernel type by signature; of rows with equal signatures the first. Raises OpAtlasError."""
    frame = Database(folder).read_or_empty(kernel_type).frame

    def cells(column: str) -> list[str]:
        return frame[column].tolist() if column in frame.columns else [""] * len(frame)

    calls: dict[str, ComparedCall] = {}
    columns = (MICROBENCH_MEDIAN, duration_columns(kernel_type)[0], AVERAGE, *_COLUMNS)
    for signature, row in zip(signatures(kernel_type, frame), _rows([cells(name) for name in columns]), strict=True):
        if signature not in calls:
            calls[signature] = _call(*row)
    return calls


_COLUMNS = (
    MICROBENCH_STD,
    MICROBENCH_SAMPLES,
    MICROBENCH_DEVICE_KERNELS,
    SPAN,
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


def _rows(columns: list[list[str]]) -> Iterator[tuple[str, ...]]:
    yield from zip(*columns, strict=True)


def _call(
    median: str, stored: str, mean: str, std: str, samples: str, kernels: str, span: str, status: str, *others: str
) -> ComparedCall:
    reason, *described = others
    found = Status.from_cell(status)
    duration_us = valid_duration(median) or valid_duration(stored)
    if found not in (None, Status.MEASURED) or duration_us is None:
        # A row that failed keeps an earlier duration, which says nothing about the failure.
        lost = found in (None, Status.MEASURED)
        return ComparedCall(MISSING if lost else str(found), reason)
    std_us = parse_real(std)
    noise = std_us / (valid_duration(mean) or duration_us) if std_us is not None and std_us >= 0 else None
    return ComparedCall(
        Status.MEASURED.value,
        reason,
        duration_us,
        valid_duration(span),
        parse_whole(kernels),
        noise,
        parse_whole(samples),
        *described,
    )
