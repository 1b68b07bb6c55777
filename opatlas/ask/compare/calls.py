"""What a comparison knows of a row: the row of a table, and which of its durations counts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from opatlas.formats import percent
from opatlas.row.columns import (
    CONVERSIONS,
    MICROBENCH_DEVICE_KERNELS,
    OUTPUTS_MISSING,
    POOLED_RUN_DURATIONS,
    SPAN,
    STATUS_REASON,
)
from opatlas.row.durations import Duration, Source, run_medians
from opatlas.row.quality import AMBIGUOUS_LIMIT, NOISE_LIMIT, Quality, valid_duration
from opatlas.row.status import Status
from opatlas.row.table import Row
from opatlas.text import parse_whole

#: The status of a row that a database lacks, or that was never run.
MISSING = "missing"
#: A call with a longer span, as a multiple of the sum of its kernels, waits for the host.
_HOST_BOUND = 1.2


@dataclass(frozen=True)
class RowCall:
    """The call of a row, as a database has it.

    Attributes:
        row: None if the database has no such row, or no capture of it.
        duration: None unless the last run of the row, or a capture, measured it.
    """

    row: Row | None = None
    duration: Duration | None = None

    @property
    def status(self) -> str:
        """A value of Status, or MISSING."""
        if self.duration is not None:
            return Status.MEASURED.value
        status = None if self.row is None else self.row.status
        return MISSING if status in (None, Status.MEASURED) else str(status)

    @property
    def reason(self) -> str:
        """The Status Reason; "" for a capture."""
        return "" if self.row is None or self.is_captured else self.row.cell(STATUS_REASON)

    def cell(self, column: str) -> str:
        """Returns a cell about what a replay measured; "" if none did."""
        return "" if self.row is None or self.duration is None or self.is_captured else self.row.cell(column)

    @property
    def is_captured(self) -> bool:
        """Whether a profiler of a model timed the call, and no replay."""
        return self.duration is not None and self.duration.source is Source.CAPTURED

    @property
    def sum_us(self) -> float | None:
        """The median of the kernels' sum in microseconds; None for a call without a duration."""
        return None if self.duration is None else self.duration.median_us

    @property
    def span_us(self) -> float | None:
        """The median time from the start of the first to the end of the last kernel; None if unknown."""
        return valid_duration(self.cell(SPAN))

    @property
    def kernels(self) -> int | None:
        """The number of device kernels; None if unknown."""
        return parse_whole(self.cell(MICROBENCH_DEVICE_KERNELS))

    @property
    def is_host_bound(self) -> bool:
        """Whether the device waits between the kernels of the call, so that its span is not the device's time."""
        if self.duration is None or (self.kernels or 0) < 2:
            return False
        return (self.span_us or 0.0) > _HOST_BOUND * self.duration.median_us

    @property
    def duration_us(self) -> float | None:
        """The span of several kernels, unless the call is host-bound; else the sum."""
        is_span = (self.kernels or 0) > 1 and not self.is_host_bound
        return (self.span_us if is_span else None) or self.sum_us

    @property
    def is_composition(self) -> bool:
        """Whether several operators were timed in place of the row's kernel."""
        return self.duration is not None and bool(self.duration.composed)

    @property
    def is_partial(self) -> bool:
        """Whether outputs are missing, or inputs and results were converted outside the measured time."""
        return bool(self.cell(OUTPUTS_MISSING) or self.cell(CONVERSIONS))

    @property
    def noise(self) -> float | None:
        """The standard deviation of the samples as a share of the stored duration; None if unknown."""
        return None if self.duration is None or math.isnan(self.duration.noise) else self.duration.noise

    @property
    def samples(self) -> int | None:
        """The number of samples; None if unknown."""
        return None if self.duration is None or math.isnan(self.duration.samples) else int(self.duration.samples)

    @property
    def variance_of_mean(self) -> float:
        """The squared relative error of the mean; a spread that is not known counts as NOISE_LIMIT."""
        noise = NOISE_LIMIT if self.noise is None else self.noise
        return noise**2 / max(self.samples or 1, 1)

    @property
    def why_ambiguous(self) -> str:
        """Why the samples describe no single duration: bimodal, throttled, or much noise; else ""."""
        quality = None if self.duration is None else self.duration.quality
        if quality in (Quality.BIMODAL, Quality.THROTTLED):
            return str(quality)
        noise = self.noise or 0.0
        return f"noise of {percent(noise, 0)}" if noise > AMBIGUOUS_LIMIT else ""

    @property
    def run_medians_us(self) -> tuple[float, ...]:
        """The median of each run that the duration was pooled from; empty if it is that of one run."""
        medians = run_medians(self.cell(POOLED_RUN_DURATIONS))
        # A duration that replaced the pooled one is of another run.
        return tuple(medians.values()) if self.duration is not None and self.duration.run_id in medians else ()


def replayed_call(row: Row) -> RowCall:
    """Returns the call with its replayed duration.

    A row that failed keeps an earlier duration, which says nothing about the failure.
    """
    return RowCall(row, row.replayed if row.status in (None, Status.MEASURED) else None)


def captured_call(row: Row) -> RowCall:
    """Returns the call with its captured duration."""
    return RowCall(row, row.captured) if row.captured is not None else RowCall()
