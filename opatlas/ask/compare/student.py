"""Student's t: probabilities, quantiles, and the mean of ratios with its interval."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from statistics import fmean, stdev

#: The confidence of the interval of a mean.
LEVEL = 0.95


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
    """The geometric mean of ratios, and its interval of `LEVEL` over rows.

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
    half = stdev(logarithms) / math.sqrt(count) * two_sided_t(1 - LEVEL, min(count - 1, _NEARLY_NORMAL))
    # Two rows may lie so far apart that an end is no number.
    return Mean(count, math.exp(middle), *(math.exp(max(-700.0, min(700.0, middle + each))) for each in (-half, half)))


#: With more degrees of freedom t is the normal distribution.
_NEARLY_NORMAL = 1000
