"""Ratios of durations: of rounds, in which a kernel and the baseline of its row are sampled in turn, and their means.

Both samples of a round are neighbours in time, so that whatever changes the level of all durations (clocks, other
programs) changes both. The verdict rests on the median of the rounds' ratios, and on its interval by ranks, which
assumes no distribution.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median, stdev

from opatlas.text import Word

#: The confidence of an interval: three standard errors of a normal distribution.
LEVEL = 0.9973
#: Smaller differences of logarithms count as none.
LEAST_DIFFERENCE = 0.05
#: The fewest and the most rounds of a row, and after how many more the verdict is looked at again.
LEAST_ROUNDS, MOST_ROUNDS, ROUNDS_AT_ONCE = 20, 60, 5
#: Fewer ratios have no interval of `LEVEL`: all of them lie on one side of the median too often.
LEAST_FOR_INTERVAL = 10
_Z = NormalDist().inv_cdf((1 + LEVEL) / 2)


class PairVerdict(Word):
    """A kernel against the baseline."""

    FAST = "FAST"
    SLOW = "SLOW"
    SAME = "SAME"
    AMBIGUOUS = "AMBIGUOUS"
    NOT_COMPARABLE = "NOT COMPARABLE"

    @property
    def is_definite(self) -> bool:
        """Whether one of the two is faster."""
        return self in (PairVerdict.FAST, PairVerdict.SLOW)

    @property
    def counts(self) -> bool:
        """Whether the ratio may count in a mean: chance does not decide it."""
        return self.is_definite or self is PairVerdict.SAME


@dataclass(frozen=True)
class RatioInterval:
    """The duration of the baseline / that of the kernel, and its interval of `LEVEL`.

    Attributes:
        ratio: above 1 where the kernel is faster.
        rounds: the number of ratios that it is the median of.
    """

    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def logarithm(self) -> float:
        """The natural logarithm of the ratio."""
        return math.log(self.ratio)

    def verdict(self, threshold: float = LEAST_DIFFERENCE) -> PairVerdict:
        """Returns what the interval says.

        Args:
            threshold: the difference of logarithms that counts as one here, LEAST_DIFFERENCE or more.
        """
        if self.rounds < LEAST_FOR_INTERVAL:
            return PairVerdict.AMBIGUOUS
        low, high = math.log(self.low), math.log(self.high)
        if abs(self.logarithm) > threshold and not low <= 0 <= high:
            return PairVerdict.FAST if self.logarithm > 0 else PairVerdict.SLOW
        # Where more counts, less is not the same.
        return PairVerdict.SAME if max(-low, high) < LEAST_DIFFERENCE else PairVerdict.AMBIGUOUS


def ratio_interval(baseline_us: Sequence[float], kernel_us: Sequence[float]) -> RatioInterval:
    """Returns the median of the rounds' ratios with its interval by ranks.

    Args:
        baseline_us, kernel_us: the samples of each round, at least one.
    """
    logarithms = sorted(math.log(ours / theirs) for ours, theirs in zip(baseline_us, kernel_us, strict=True))
    count = len(logarithms)
    rank = max(0, math.floor(count / 2 - _Z * math.sqrt(count) / 2 - 0.5))
    middle, low, high = median(logarithms), logarithms[rank], logarithms[count - 1 - rank]
    return RatioInterval(math.exp(middle), math.exp(low), math.exp(high), count)


def of_processes(intervals: Sequence[RatioInterval]) -> RatioInterval:
    """Returns what the rounds of several processes say together: the cautious end of each.

    The memory of another process lies elsewhere: a difference that only one of them finds is that of places. The ratio
    is the one that is nearer to 1, and the interval has all of both, so that it is definite only if all agree.
    """
    nearest = min(intervals, key=lambda each: abs(each.logarithm))
    rounds = min(each.rounds for each in intervals)
    return RatioInterval(
        nearest.ratio, min(each.low for each in intervals), max(each.high for each in intervals), rounds
    )


#: The confidence of the interval of a mean.
_MEAN_LEVEL = 0.95
#: With more degrees of freedom t is the normal distribution.
_NEARLY_NORMAL = 1000


def two_sided_p(t: float, freedom: int) -> float:
    """Returns the probability of a larger absolute value of Student's t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    square = math.cos(angle) ** 2
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    series = 0.0
    for k in range(2 + odd, freedom + 1, 2):
        series += term
        term *= square * (k - 1) / k
    inside = (angle + math.sin(angle) * series) * 2 / math.pi if odd else math.sin(angle) * series
    return max(0.0, 1.0 - inside)


def two_sided_t(p: float, freedom: int) -> float:
    """Returns the t whose absolute value is exceeded with a probability; the inverse of `two_sided_p`, to 1e-9."""
    low, high = 0.0, 1.0
    while two_sided_p(high, freedom) > p:
        high *= 2
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_p(middle, freedom) > p else (low, middle)
    return high


@dataclass(frozen=True)
class Mean:
    """The geometric mean of ratios, and its interval of 95 % over rows.

    Attributes:
        rows: the number of ratios.
        ratio: None without ratios.
        low, high: None for fewer than two ratios.
    """

    rows: int = 0
    ratio: float | None = None
    low: float | None = None
    high: float | None = None


def mean_of(ratios: Collection[float]) -> Mean:
    """Returns the geometric mean of positive numbers, with the interval that Student's t gives their logarithms."""
    logarithms = [math.log(ratio) for ratio in ratios]
    if not logarithms:
        return Mean()
    count, middle = len(logarithms), fmean(logarithms)
    if count < 2:
        return Mean(count, math.exp(middle))
    half = stdev(logarithms) / math.sqrt(count) * two_sided_t(1 - _MEAN_LEVEL, min(count - 1, _NEARLY_NORMAL))
    # Two rows may lie so far apart that an end is no number.
    return Mean(count, math.exp(middle), *(math.exp(max(-700.0, min(700.0, middle + each))) for each in (-half, half)))
