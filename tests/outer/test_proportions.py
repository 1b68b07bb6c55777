"""Intervals of pass rates: what holds for any counts, and figures of textbooks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opatlas.outer.experiment.tables import pass_rate, wilson_interval

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


def test_figures_of_textbooks() -> None:
    # Newcombe (1998), Statistics in Medicine 17, table I, method 3: 81/263, 15/148, 0/20, 1/29.
    for count, expected in (
        ((81, 263), (0.2553, 0.3662)),
        ((15, 148), (0.0624, 0.1605)),
        ((0, 20), (0, 0.1611)),
        ((1, 29), (0.0061, 0.1718)),
    ):
        assert wilson_interval(*count) == pytest.approx(expected, abs=6e-5)


def test_no_tasks_are_no_data() -> None:
    assert wilson_interval(0, 0) is None
    found = pass_rate(0, 0)
    assert (found.rate, found.low, found.high) == (None, None, None)
