"""Pass rates with Wilson's interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

#: The confidence level of the intervals of pass rates.
LEVEL = 0.95


def wilson_interval(passed: int, tasks: int, level: float = LEVEL) -> tuple[float, float] | None:
    """Returns the ends of Wilson's score interval of a proportion, from 0 to 1; None without tasks.

    Args:
        passed: from 0 to `tasks`.
        level: the two-sided confidence level, between 0 and 1.

    Source: E. B. Wilson, Journal of the American Statistical Association 22 (1927), 209-212.
    """
    if not tasks:
        return None
    z2 = NormalDist().inv_cdf((1 + level) / 2) ** 2
    share = passed / tasks
    centre = (share + z2 / (2 * tasks)) / (1 + z2 / tasks)
    half = math.sqrt(z2 * (share * (1 - share) / tasks + z2 / (4 * tasks**2))) / (1 + z2 / tasks)
    # At the ends rounding would leave 1e-17 in place of the exact bound.
    return (centre - half if passed else 0.0), (centre + half if passed < tasks else 1.0)


@dataclass(frozen=True)
class PassRate:
    """A number of passed tasks, or attempts, with its share.

    Attributes:
        passed, of: the passed ones, and all.
        rate: passed / of; None if there is none.
        low, high: Wilson's interval at LEVEL; None if there is none.
    """

    passed: int
    of: int
    rate: float | None
    low: float | None
    high: float | None


def pass_rate(passed: int, of: int) -> PassRate:
    """Returns a pass rate with its interval."""
    interval = wilson_interval(passed, of)
    if interval is None:
        return PassRate(passed, of, None, None, None)
    return PassRate(passed, of, passed / of, *interval)
