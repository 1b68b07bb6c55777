"""Statistics of pass rates: what holds for any counts, and figures of textbooks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opatlas.experiment.proportions import (
    mcnemar_p,
    pass_rate,
    two_proportion_test,
    wilson_interval,
)

counts = st.integers(1, 5000).flatmap(lambda tasks: st.tuples(st.integers(0, tasks), st.just(tasks)))
levels = st.floats(0.01, 0.999)


@given(counts, levels)
def test_an_interval_lies_in_0_to_1_around_the_rate(count: tuple[int, int], level: float) -> None:
    passed, tasks = count
    interval = wilson_interval(passed, tasks, level)
    assert interval is not None
    low, high = interval
    assert 0 <= low <= passed / tasks <= high <= 1
    assert low < high
    # The failed tasks have the mirrored interval.
    assert wilson_interval(tasks - passed, tasks, level) == pytest.approx((1 - high, 1 - low), abs=1e-12)


@given(counts, levels)
def test_an_interval_is_narrower_at_a_lower_level_and_with_more_tasks(count: tuple[int, int], level: float) -> None:
    passed, tasks = count

    def width(passed: int, tasks: int, level: float) -> float:
        low, high = wilson_interval(passed, tasks, level) or (0, 0)
        return high - low

    assert width(passed, tasks, level / 2) < width(passed, tasks, level)
    assert width(4 * passed, 4 * tasks, level) < width(passed, tasks, level)


def test_an_interval_covers_the_true_rate_as_often_as_it_says() -> None:
    """Over all counts that 30 tasks of a rate can give, weighted by how likely they are."""
    tasks, covered = 30, []
    for rate in (0.05, 0.2, 0.5, 0.77):
        weights = [math.comb(tasks, k) * rate**k * (1 - rate) ** (tasks - k) for k in range(tasks + 1)]
        within = [low <= rate <= high for k in range(tasks + 1) for low, high in [wilson_interval(k, tasks) or (0, 0)]]
        covered.append(sum(weight for weight, holds in zip(weights, within, strict=True) if holds))
    assert all(0.92 < each < 0.99 for each in covered)


def test_figures_of_textbooks() -> None:
    # Newcombe (1998), Statistics in Medicine 17, table I, method 3: 81/263, 15/148, 0/20, 1/29.
    for count, expected in (
        ((81, 263), (0.2553, 0.3662)),
        ((15, 148), (0.0624, 0.1605)),
        ((0, 20), (0, 0.1611)),
        ((1, 29), (0.0061, 0.1718)),
    ):
        assert wilson_interval(*count) == pytest.approx(expected, abs=6e-5)
    assert mcnemar_p(1, 7) == pytest.approx(18 / 256)
    assert mcnemar_p(5, 5) == 1.0


@given(st.integers(0, 300), st.integers(0, 300))
def test_mcnemar_is_symmetric_and_a_probability(only_first: int, only_second: int) -> None:
    p = mcnemar_p(only_first, only_second)
    assert p == mcnemar_p(only_second, only_first)
    assert 0 < p <= 1
    # A clearer difference has a smaller p.
    if only_first >= only_second:
        assert mcnemar_p(only_first + 1, only_second) <= p


def test_mcnemar_rejects_no_more_often_than_it_says() -> None:
    """Of all ways in which 40 differing tasks may fall, where both ways are equally good."""
    for level in (0.05, 0.01):
        rejected = sum(math.comb(40, k) for k in range(41) if mcnemar_p(k, 40 - k) <= level)
        assert 0 < rejected / 2**40 <= level


@given(counts, counts)
def test_the_z_test_is_antisymmetric(one: tuple[int, int], two: tuple[int, int]) -> None:
    found, mirrored = two_proportion_test(*one, *two), two_proportion_test(*two, *one)
    assert found is not None
    assert mirrored is not None
    assert (found.z, found.p) == (-mirrored.z, mirrored.p)
    assert 0 <= found.p <= 1
    same = two_proportion_test(*one, *one)
    assert same is not None
    assert (same.z, same.p) == (0, 1)


def test_no_tasks_are_no_data() -> None:
    assert wilson_interval(0, 0) is None
    assert two_proportion_test(0, 0, 1, 2) is None
    found = pass_rate(0, 0)
    assert (found.rate, found.low, found.high) == (None, None, None)
