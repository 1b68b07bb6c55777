"""Two calls of a row against each other: the speed-up, and whether it exceeds the spread of the samples."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum
from statistics import pvariance

from opatlas.ask.compare.calls import RowCall
from opatlas.ask.compare.steps import LEAST_SPREAD
from opatlas.row.columns import CACHE_STATE, INSTRUMENT

#: Smaller differences of logarithms count as none.
LEAST_DIFFERENCE = 0.05
#: A difference within this many standard errors may be chance.
STANDARD_ERRORS = 3.0


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
