"""The call of a row that a database has: which duration counts, and two of them against each other."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median, pvariance

from opatlas.formats import percent
from opatlas.grouping import grouped
from opatlas.row import columns as col
from opatlas.row.quality import (
    AMBIGUOUS_LIMIT,
    HOST_BOUND,
    NOISE_LIMIT,
    Duration,
    Quality,
    Source,
    run_medians,
    valid_duration,
)
from opatlas.row.rounds import LEAST_DIFFERENCE, LEAST_FOR_INTERVAL, LEVEL, PairVerdict, RatioInterval, two_sided_t
from opatlas.row.status import Status
from opatlas.row.table import Row
from opatlas.text import Word, parse_whole

#: The status of a row that a database lacks, or that was never run.
MISSING = "missing"
#: The least standard deviation of a run that is expected, whatever the rows of a database tell.
LEAST_SPREAD = 0.02
#: A difference within this many standard errors may be chance.
STANDARD_ERRORS = 3.0
#: The standard deviation of a run's duration that is assumed where no pooled runs tell it: of instruments that time
#: kernels on a device, by 1,260 rows of an H200 days apart; and of other clocks, by ten runs on a shared CPU.
SPREAD_ON_DEVICE, SPREAD_OF_WALL_CLOCK = 0.015, 0.10
_ON_DEVICE = frozenset({"cupti", "kineto", "msprof"})
#: The median absolute deviation of a normal distribution with standard deviation 1.
MAD_OF_NORMAL = 0.6745
#: A difference counts from so many times what controls differ beyond their intervals.
_TIMES_EXCESS = 2.0


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
        return "" if self.row is None or self.is_captured else self.row.cell(col.STATUS_REASON)

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
        return valid_duration(self.cell(col.SPAN))

    @property
    def kernels(self) -> int | None:
        """The number of device kernels; None if unknown."""
        return parse_whole(self.cell(col.MICROBENCH_DEVICE_KERNELS))

    @property
    def is_host_bound(self) -> bool:
        """Whether the device waits between the kernels of the call, so that its span is not the device's time."""
        if self.duration is None or (self.kernels or 0) < 2:
            return False
        return (self.span_us or 0.0) > HOST_BOUND * self.duration.median_us

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
        return bool(self.cell(col.OUTPUTS_MISSING) or self.cell(col.CONVERSIONS))

    @property
    def run_id(self) -> str:
        """The run that measured the duration; "" if unknown."""
        return "" if self.duration is None else self.duration.run_id

    @property
    def ratios(self) -> RatioInterval | None:
        """The baseline's duration / the call's, of rounds in one session; None without rounds."""
        cells = (valid_duration(self.cell(column)) for column in (col.SPEED_UP, col.SPEED_UP_LOW, col.SPEED_UP_HIGH))
        ratio, low, high = cells
        if ratio is None or low is None or high is None or not self.rounds:
            return None
        return RatioInterval(ratio, low, high, min(self.rounds))

    @property
    def rounds(self) -> tuple[int, ...]:
        """The number of rounds in each process."""
        return tuple(count for part in self.cell(col.SPEED_UP_ROUNDS).split(";") if (count := parse_whole(part)))

    @property
    def control(self) -> float | None:
        """The baseline's duration / the baseline's, called once more in the same rounds; None without a control."""
        return valid_duration(self.cell(col.CONTROL_RATIO))

    @property
    def spread_of_runs(self) -> float:
        """The standard deviation of a run's duration, as a share, that is assumed of the instrument."""
        name = self.cell(col.INSTRUMENT)
        on_device = self.is_captured or name in _ON_DEVICE or name.endswith("-events")
        return SPREAD_ON_DEVICE if on_device else SPREAD_OF_WALL_CLOCK

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
        medians = run_medians(self.cell(col.POOLED_RUN_DURATIONS))
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


class Basis(Word):
    """What the interval of a comparison knows of the changes of a machine."""

    ROUNDS = "rounds"
    POOLED_RUNS = "pooled runs"
    DEFAULT = "default"


@dataclass(frozen=True)
class Controls:
    """The controls of a run: the baseline, compared in rounds with itself.

    Attributes:
        run_id: the run.
        rows: the number of rows with a control.
        spread: the robust standard deviation around 0 of the logarithms of their ratios; None without controls.
        excess: how far the logarithms lie beyond the intervals of their rows: of ten controls nine stay below.
    """

    run_id: str
    rows: int = 0
    spread: float | None = None
    excess: float = 0.0

    @property
    def threshold(self) -> float:
        """The difference of logarithms that counts as one on that machine at that time."""
        return max(LEAST_DIFFERENCE, _TIMES_EXCESS * self.excess)


def controls_of(run_id: str, calls: Sequence[RowCall]) -> Controls:
    """Returns the controls among the calls of a run.

    A control has as many rounds as its row, so that its interval is about as wide.
    """
    logarithms, excesses = [], []
    for call in calls:
        if call.control is not None and (ratios := call.ratios) is not None:
            logarithms.append(abs(math.log(call.control)))
            excesses.append(max(0.0, logarithms[-1] - (math.log(ratios.high) - math.log(ratios.low)) / 2))
    if not logarithms:
        return Controls(run_id)
    nine_of_ten = sorted(excesses)[int(0.9 * (len(excesses) - 1))]
    return Controls(run_id, len(logarithms), median(logarithms) / MAD_OF_NORMAL, nine_of_ten)


def controls_by_run(calls: Iterable[RowCall]) -> dict[str, Controls]:
    """Returns the controls of each run that has rounds, by run id."""
    by_run = grouped((call.run_id, call) for call in calls if call.rounds)
    return {run_id: controls_of(run_id, of_run) for run_id, of_run in by_run.items()}


@dataclass(frozen=True)
class CallPair:
    """A rival's call and the baseline's, both measured.

    Attributes:
        baseline_us, rival_us: the durations of the calls: sums if either call is host-bound.
        ratios: the baseline's duration / the rival's, with an interval of 99.7 %: of rounds, else of the durations by
            the spreads of the samples and of runs.
        margin: the difference of logarithms from which on one of the two may be faster.
        basis: what the interval rests on.
        spread: the standard deviation of a run that the interval includes; None for rounds, which are of one run.
        reason: why the verdict is AMBIGUOUS or NOT_COMPARABLE; "" for others.
        host_bound: whether a call waits for the host between its kernels.
        composition: which of both timed several operators in place of the kernel: "baseline", "rival", "both" or "".
        run_id: the run of the rounds; "" without rounds.
    """

    baseline_us: float
    rival_us: float
    ratios: RatioInterval
    margin: float
    basis: Basis
    spread: float | None
    verdict: PairVerdict
    reason: str = ""
    host_bound: bool = False
    composition: str = ""
    run_id: str = ""

    @property
    def speed_up(self) -> float:
        """The baseline's duration / the rival's."""
        return self.ratios.ratio

    @property
    def is_comparable(self) -> bool:
        """Whether the ratio is one of two implementations, and not of two ways to measure."""
        return self.verdict is not PairVerdict.NOT_COMPARABLE


def compare_calls(baseline: RowCall, rival: RowCall, controls: Mapping[str, Controls] | None = None) -> CallPair | None:
    """Returns the comparison of two calls of a row; None unless both are measured.

    Args:
        controls: of the runs with rounds, by run id.
    """
    if baseline.duration is None or rival.duration is None:
        return None
    host_bound = baseline.is_host_bound or rival.is_host_bound
    baseline_us, rival_us = (call.sum_us if host_bound else call.duration_us for call in (baseline, rival))
    assert baseline_us is not None
    assert rival_us is not None
    difference = _other_conditions(baseline, rival)
    spread, run_id = None, ""
    if (sampled := _sampled_in_rounds(baseline, rival)) is not None and sampled.ratios is not None:
        ratios, basis, run_id = sampled.ratios, Basis.ROUNDS, sampled.run_id
        if sampled is baseline:
            ratios = RatioInterval(1 / ratios.ratio, 1 / ratios.high, 1 / ratios.low, ratios.rounds)
        margin = (controls or {}).get(run_id, Controls(run_id)).threshold
        verdict, reason = _verdict_of_rounds(sampled, ratios, margin)
    else:
        variance, spread, basis, errors = _variance_of_runs(baseline, rival)
        reach = errors * math.sqrt(baseline.variance_of_mean + rival.variance_of_mean + variance)
        ratios = _interval(baseline_us / rival_us, reach)
        margin = max(LEAST_DIFFERENCE, reach)
        verdict, reason = _verdict_of_durations(baseline, rival, ratios.logarithm, margin)
    if difference:
        verdict, reason = PairVerdict.NOT_COMPARABLE, difference
    composed = {"baseline": baseline.is_composition, "rival": rival.is_composition}
    composition = "both" if all(composed.values()) else next((who for who, holds in composed.items() if holds), "")
    durations = (baseline_us, rival_us)
    return CallPair(*durations, ratios, margin, basis, spread, verdict, reason, host_bound, composition, run_id)


def _interval(ratio: float, reach: float) -> RatioInterval:
    # A wider interval says no more, and would be no number.
    factor = math.exp(min(reach, 100.0))
    return RatioInterval(ratio, ratio / factor, ratio * factor, 0)


def _sampled_in_rounds(baseline: RowCall, rival: RowCall) -> RowCall | None:
    """Returns which of both was sampled in rounds with the other one.

    None without such rounds, and where the one that was called along was measured anew since. Run ids begin with the
    time.
    """
    for call, other in ((rival, baseline), (baseline, rival)):
        against = call.cell(col.SPEED_UP_AGAINST)
        is_against = bool(against) and against == other.cell(col.IMPLEMENTATION) and call.ratios is not None
        if is_against and call.run_id and other.run_id <= call.run_id:
            return call
    return None


def _variance_of_runs(baseline: RowCall, rival: RowCall) -> tuple[float, float, Basis, float]:
    """Returns the variance that runs add to the difference of logarithms, and what is known of it.

    That is the spread of a run, where it is from, and how many standard errors may be chance: more than
    STANDARD_ERRORS where few runs tell the spread (Student's t).

    The pooled runs of both tell the variance of one run, in which LEAST_SPREAD counts for one degree of freedom, as few
    runs may agree by chance. Without pooled runs it is that of the instruments. A call that was not pooled is of one
    run.
    """
    runs = [[math.log(us) for us in call.run_medians_us] or [0.0] for call in (baseline, rival)]
    freedom = sum(len(each) - 1 for each in runs)
    if freedom:
        squares = sum(len(each) * pvariance(each) for each in runs)
        spread, basis = math.sqrt((LEAST_SPREAD**2 + squares) / (1 + freedom)), Basis.POOLED_RUNS
        errors = two_sided_t(1 - LEVEL, 1 + freedom)
    else:
        spread, basis = max(baseline.spread_of_runs, rival.spread_of_runs), Basis.DEFAULT
        errors = STANDARD_ERRORS
    return spread**2 * sum(1 / len(each) for each in runs), spread, basis, errors


def _verdict_of_rounds(sampled: RowCall, ratios: RatioInterval, threshold: float) -> tuple[PairVerdict, str]:
    """Returns the verdict and its reason.

    Two levels of a call are in both samples of a round by chance, and widen the interval; a clock that was lowered
    may have been so for one kernel only.
    """
    assert sampled.duration is not None
    if sampled.duration.quality is Quality.THROTTLED:
        return PairVerdict.AMBIGUOUS, f"the rounds: {Quality.THROTTLED}"
    if ratios.rounds < LEAST_FOR_INTERVAL:
        return PairVerdict.AMBIGUOUS, f"fewer than {LEAST_FOR_INTERVAL} rounds"
    verdict = ratios.verdict(threshold)
    if verdict.is_definite and len(sampled.rounds) < 2:
        return PairVerdict.AMBIGUOUS, "not asked again in another process"
    return verdict, "within the interval of the rounds" if verdict is PairVerdict.AMBIGUOUS else ""


def _verdict_of_durations(
    baseline: RowCall, rival: RowCall, logarithm: float, margin: float
) -> tuple[PairVerdict, str]:
    """Returns the verdict and its reason."""
    if _is_one_measurement(baseline, rival):
        return PairVerdict.SAME, ""
    for who, call in (("the baseline", baseline), ("the rival", rival)):
        if call.why_ambiguous:
            return PairVerdict.AMBIGUOUS, f"{who}: {call.why_ambiguous}"
    if abs(logarithm) < LEAST_DIFFERENCE:
        return PairVerdict.SAME, ""
    if abs(logarithm) < margin:
        return PairVerdict.AMBIGUOUS, "a difference within the spread of samples and runs"
    return (PairVerdict.FAST if logarithm > 0 else PairVerdict.SLOW), ""


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
    for what, column in (("cache", col.CACHE_STATE), ("instrument", col.INSTRUMENT)):
        ours, theirs = baseline.cell(column), rival.cell(column)
        if ours != theirs:
            return f"{what} ({ours or 'not known'}, {theirs or 'not known'})"
    return ""
