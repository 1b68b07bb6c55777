"""Statistics of pass rates: Wilson's interval, McNemar's exact test, and the z-test of two proportions."""

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


def mcnemar_p(only_first: int, only_second: int) -> float:
    """Returns the two-sided p-value of McNemar's exact test on equal tasks.

    Args:
        only_first, only_second: numbers of tasks that only the first, only the second passed.

    Tasks that both or neither passed do not count. By chance each side passes half of the others: a binomial test.
    """
    differing = only_first + only_second
    tail = sum(math.comb(differing, count) for count in range(min(only_first, only_second) + 1))
    return float(min(1.0, 2 * tail / (1 << differing)))


@dataclass(frozen=True)
class TwoProportionTest:
    """The z-test of two proportions of different tasks, with the pooled variance.

    Attributes:
        z: standard errors between the proportions; positive if the first is higher.
        p: the two-sided p-value.
    """

    z: float
    p: float


def two_proportion_test(passed: int, tasks: int, other_passed: int, other_tasks: int) -> TwoProportionTest | None:
    """Compares passed/tasks with other_passed/other_tasks; None if one has no tasks."""
    if not tasks or not other_tasks:
        return None
    pooled = (passed + other_passed) / (tasks + other_tasks)
    error = math.sqrt(pooled * (1 - pooled) * (1 / tasks + 1 / other_tasks))
    z = (passed / tasks - other_passed / other_tasks) / error if error else 0.0
    return TwoProportionTest(z, math.erfc(abs(z) / math.sqrt(2)))


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
