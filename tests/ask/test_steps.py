"""Steps of a series: planted ones are found, and chance rarely makes one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from false_steps import Values, draw, listed
from hypothesis import given, strategies as st

from opatlas.ask.compare.steps import (
    LEAST_RUNS,
    LEAST_SPREAD,
    common_levels,
    find_steps,
    largest_probability,
    probability_of_no_change,
    search,
    spread_between_runs,
    undisturbed,
)

LEAST_SIZE = 0.05
series = st.lists(st.floats(-20, 20), min_size=LEAST_RUNS, max_size=30)


def noisy(levels: list[float], deviation: float, seed: int) -> list[float]:
    drawn = np.random.default_rng(seed).normal(0, deviation, len(levels))
    return [level + error for level, error in zip(levels, drawn.tolist(), strict=True)]


def found(values: list[float], most_p: float = 1e-4) -> tuple[int, ...]:
    return find_steps(values, LEAST_SPREAD, most_p, LEAST_SIZE)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("position", [3, 4, 10, 17])
def test_a_planted_step_is_found_where_it_is(seed: int, position: int) -> None:
    values = noisy([0.0] * position + [0.2] * (20 - position), 0.01, seed)
    assert found(values) == (position,)


@pytest.mark.parametrize("seed", range(5))
def test_several_steps_are_found_in_their_order(seed: int) -> None:
    for levels, steps in (((0.0, 0.3, 0.6), (1, 2)), ((0.0, 0.3, 0.1), (2,)), ((0.0, 0.3, 0.0), ())):
        for length in (4, 10):
            values = noisy([level for level in levels for _ in range(length)], 0.01, seed)
            # Up and most of the way down again is a disturbance.
            assert found(values, 0.001) == tuple(each * length for each in steps), (levels, length)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("start", "stop"), [(4, 7), (1, 3), (2, 9)])
def test_runs_that_are_up_and_down_again_are_left_out(start: int, stop: int, seed: int) -> None:
    values = np.array(noisy([0.0] * 10, 0.01, seed))
    values[start:stop] += 0.3
    rest = [*range(start), *range(stop, 10)]
    assert undisturbed(values, LEAST_SPREAD).tolist() in (rest, [*range(start, stop)])


def test_a_single_slow_run_in_the_middle_is_no_step() -> None:
    assert found(noisy([0.0] * 10 + [0.5] + [0.0] * 10, 0.01, 1)) == ()


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_step_has_three_runs_on_both_sides(after: int) -> None:
    values = noisy([0.0] * 8 + [0.5] * after, 0.01, 1)
    for series in (values, values[::-1]):
        assert len(found(series, 0.01)) == (after == 3)


def test_small_steps_are_none_however_clear() -> None:
    assert found([0.0] * 50 + [0.04] * 50) == ()


@pytest.mark.parametrize("count", range(LEAST_RUNS))
def test_a_short_series_has_no_change(count: int) -> None:
    values = [float(number) for number in range(count)]
    assert probability_of_no_change(values, LEAST_SPREAD) == 1
    assert found(values) == ()


@given(series)
def test_a_series_of_any_values_has_changes_in_order(values: list[float]) -> None:
    steps = find_steps(values, LEAST_SPREAD, 0.5, LEAST_SIZE)
    assert list(steps) == sorted(set(steps))
    assert all(0 < position < len(values) for position in steps)


@given(series, st.floats(-5, 5))
def test_the_level_and_the_sign_of_a_series_decide_nothing(values: list[float], level: float) -> None:
    one = probability_of_no_change(values, LEAST_SPREAD)
    other = probability_of_no_change([level - value for value in values], LEAST_SPREAD)
    assert one == pytest.approx(other, abs=1e-6)


@pytest.mark.parametrize(
    ("p", "share", "accepted"),
    [([], 0.05, 0.0), ([0.2, 0.9], 0.05, 0.0), ([0.01, 0.02, 0.03, 0.9], 0.05, 0.03), ([0.04, 0.04], 0.05, 0.04)],
)
def test_the_procedure_of_benjamini_and_hochberg(p: list[float], share: float, accepted: float) -> None:
    assert largest_probability(p, share) == accepted


@pytest.mark.parametrize("deviation", [0.03, 0.1])
def test_the_spread_between_runs_is_that_of_the_rows_without_common_steps(deviation: float) -> None:
    values = np.random.default_rng(3).normal(0, deviation, (2000, 6))
    values += np.arange(6)
    values[:50, 2:] += 0.5
    gaps = [gap.tolist() for gap in np.diff(values, axis=1).T]
    assert spread_between_runs(gaps) == pytest.approx(deviation, rel=0.1)


@pytest.mark.parametrize("gaps", [[], [[0.5]], [[0.0] * 20]])
def test_the_spread_has_a_least_value(gaps: list[list[float]]) -> None:
    assert spread_between_runs(gaps) == LEAST_SPREAD


def test_what_all_rows_have_in_common_is_found_whatever_a_few_rows_do() -> None:
    values = draw("normal", 0.01, 40, 8, 1) + np.arange(40)[:, None]
    shifts = np.array([0.0, 0.3, 0.3, -0.2, 0.0, 0.0, 0.1, 0.1])
    values += shifts
    values[:8, 4:] += 0.5
    values[8:12, :5] = np.nan
    assert common_levels(values) == pytest.approx(shifts - shifts[-1], abs=0.02)
    assert common_levels(values[:4]).tolist() == [0] * 8


def nights(seed: int, histories: int, *, scatter: float = 0.1, lasting: bool = False) -> list[Values]:
    """Ten-run histories of 24 rows of unchanged code, in which the machine is slower for some of the runs.

    Args:
        scatter: by how much the shifts of rows differ; with tails that are longer than normal ones.
        lasting: whether it stays so.
    """
    drawn, found = np.random.default_rng(seed), []
    for _ in range(histories):
        values = drawn.normal(0, 0.03, (24, 10)) + drawn.uniform(2, 8, (24, 1))
        start = int(drawn.integers(1, 9))
        stop = 10 if lasting else start + int(drawn.integers(1, 5))
        values[:, start:stop] += drawn.normal(0.25, 0.15) + drawn.laplace(0, scatter / math.sqrt(2), (24, 1))
        found.append(values)
    return found


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("scatter", [0.0, 0.05, 0.2])
def test_a_slower_machine_makes_no_steps_of_rows(scatter: float, lasting: bool) -> None:
    """At most 0.4 % of the pairs of a row and a history have a step."""
    histories = nights(3, 60, scatter=scatter, lasting=lasting)
    stepped = sum(len({each.row for each in search(values).changes}) for values in histories)
    assert stepped <= 0.004 * 24 * len(histories)


@pytest.mark.parametrize(("runs", "after", "least"), [(10, 5, 0.65), (20, 5, 0.85), (20, 10, 0.9)])
def test_a_tenth_in_three_of_twenty_rows_is_found(runs: int, after: int, least: float) -> None:
    stepped = others = 0
    for seed in range(40):
        values = draw("normal", 0.02, 20, runs, seed)
        values[:3, runs - after :] += math.log(1.1)
        rows = {each.row for each in search(values).changes}
        stepped, others = stepped + len(rows & {0, 1, 2}), others + len(rows - {0, 1, 2})
    assert stepped >= least * 3 * 40
    assert others <= 0.004 * 17 * 40


def test_a_step_is_found_although_the_machine_changed_too() -> None:
    (values,) = nights(5, 1, scatter=0.02)
    values[3, 5:] += 0.8
    assert [(each.row, each.after) for each in search(values).changes] == [(3, 5)]


@pytest.mark.parametrize("count", [6, 12, 25])
def test_rows_with_other_spreads_list_next_to_none(count: int) -> None:
    assert sum(listed(draw("rows differ", 0.03, 1000, count, count))) <= 5


def test_planted_steps_are_listed_and_few_others() -> None:
    values = draw("normal", 0.02, 1000, 12, 5)
    values[:50, 8:] += math.log(1.15)
    rows = listed(values)
    assert sum(rows[:50]) >= 45
    assert sum(rows[50:]) <= 3
