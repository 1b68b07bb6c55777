"""The call of a row that a database has: which duration counts, and two of them against each other."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from statistics import pvariance

from opatlas.formats import percent
from opatlas.row.columns import (
    CACHE_STATE,
    CONVERSIONS,
    INSTRUMENT,
    MICROBENCH_DEVICE_KERNELS,
    OUTPUTS_MISSING,
    POOLED_RUN_DURATIONS,
    SPAN,
    STATUS_REASON,
)
from opatlas.row.quality import AMBIGUOUS_LIMIT, NOISE_LIMIT, Duration, Quality, Source, run_medians, valid_duration
from opatlas.row.status import Status
from opatlas.row.table import Row
from opatlas.text import parse_whole

#: The status of a row that a database lacks, or that was never run.
MISSING = "missing"
#: The least standard deviation of a run that is expected, whatever the rows of a database tell.
LEAST_SPREAD = 0.02
#: Smaller differences of logarithms count as none.
LEAST_DIFFERENCE = 0.05
#: A difference within this many standard errors may be chance.
STANDARD_ERRORS = 3.0
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


class PairVerdict(str, Enum):
    """A rival against the baseline."""

    FAST = "FAST"
    SLOW = "SLOW"
    SAME = "SAME"
    AMBIGUOUS = "AMBIGUOUS"
    NOT_COMPARABLE = "NOT COMPARABLE"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class CallPair:
    """A rival's call and the baseline's, both measured.

    Attributes:
        baseline_us, rival_us: the durations that are compared: sums if either call is host-bound.
        standard_error: of the difference of logarithms, by the spreads of the samples and of pooled runs.
        reason: why the verdict is AMBIGUOUS or NOT_COMPARABLE; "" for others.
        host_bound: whether a call waits for the host between its kernels.
    """

    baseline_us: float
    rival_us: float
    standard_error: float
    verdict: PairVerdict
    reason: str = ""
    host_bound: bool = False

    @property
    def speed_up(self) -> float:
        """The baseline's duration / the rival's."""
        return self.baseline_us / self.rival_us

    @property
    def margin(self) -> float:
        """The difference of logarithms from which on one of the two is faster."""
        return max(LEAST_DIFFERENCE, STANDARD_ERRORS * self.standard_error)

    @property
    def is_comparable(self) -> bool:
        """Whether the ratio is one of two implementations, and not of two ways to measure."""
        return self.verdict is not PairVerdict.NOT_COMPARABLE


def compare_calls(baseline: RowCall, rival: RowCall) -> CallPair | None:
    """Returns the comparison of two calls of a row; None unless both are measured."""
    if baseline.duration is None or rival.duration is None:
        return None
    host_bound = baseline.is_host_bound or rival.is_host_bound
    baseline_us, rival_us = (call.sum_us if host_bound else call.duration_us for call in (baseline, rival))
    assert baseline_us is not None
    assert rival_us is not None
    of_samples = baseline.variance_of_mean + rival.variance_of_mean
    error = math.sqrt(of_samples + _variance_of_runs(baseline, rival))
    pair = CallPair(baseline_us, rival_us, error, PairVerdict.SAME, host_bound=host_bound)
    verdict, reason = _verdict(baseline, rival, pair)
    return replace(pair, verdict=verdict, reason=reason)


def _variance_of_runs(baseline: RowCall, rival: RowCall) -> float:
    """Returns the variance of the difference of logarithms that pooled runs tell; 0 if neither call was pooled.

    The runs of both tell the variance of one run, in which LEAST_SPREAD counts for one degree of freedom, as few runs
    may agree by chance. A call that was not pooled is of one run.
    """
    runs = [[math.log(us) for us in call.run_medians_us] or [0.0] for call in (baseline, rival)]
    freedom = sum(len(each) - 1 for each in runs)
    if not freedom:
        return 0.0
    squares = sum(len(each) * pvariance(each) for each in runs)
    of_a_run = (LEAST_SPREAD**2 + squares) / (1 + freedom)
    return of_a_run * sum(1 / len(each) for each in runs)


def _verdict(baseline: RowCall, rival: RowCall, pair: CallPair) -> tuple[PairVerdict, str]:
    """Returns the verdict and its reason."""
    if difference := _other_conditions(baseline, rival):
        return PairVerdict.NOT_COMPARABLE, difference
    if _is_one_measurement(baseline, rival):
        return PairVerdict.SAME, ""
    for who, call in (("the baseline", baseline), ("the rival", rival)):
        if call.why_ambiguous:
            return PairVerdict.AMBIGUOUS, f"{who}: {call.why_ambiguous}"
    faster = math.log(pair.speed_up)
    if abs(faster) < LEAST_DIFFERENCE:
        return PairVerdict.SAME, ""
    if abs(faster) < pair.margin:
        return PairVerdict.AMBIGUOUS, "a difference within the spread of samples and runs"
    return (PairVerdict.FAST if faster > 0 else PairVerdict.SLOW), ""


def _is_one_measurement(baseline: RowCall, rival: RowCall) -> bool:
    """Returns whether both calls are of one measurement, in two states of a database."""
    numbers = ("sum_us", "span_us", "noise", "samples", "why_ambiguous")
    return all(getattr(baseline, name) == getattr(rival, name) for name in numbers)


def _other_conditions(baseline: RowCall, rival: RowCall) -> str:
    """Returns the condition that differs; "" if none does.

    A capture has the caches and the clocks of its model, which no column tells: a replay is compared with it whatever
    its own are, unless it timed several operators in place of the kernel.
    """
    if baseline.is_captured != rival.is_captured:
        return "the replay is a composition" if baseline.is_composition or rival.is_composition else ""
    for what, column in (("cache", CACHE_STATE), ("instrument", INSTRUMENT)):
        ours, theirs = baseline.cell(column), rival.cell(column)
        if ours != theirs:
            return f"{what} ({ours or 'not known'}, {theirs or 'not known'})"
    return ""
