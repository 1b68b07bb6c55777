"""The verdict of two calls, for any durations and spreads."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from math import nan
from random import Random
from statistics import median

import pytest
from compared import call, lost_call
from hypothesis import assume, given
from hypothesis import strategies as st

from opatlas.ask.compare.calls import CallPair, PairVerdict, RowCall, compare_calls
from opatlas.ask.compare.comparison import geometric_mean
from opatlas.row.columns import CACHE_STATE, INSTRUMENT
from opatlas.row.quality import Quality

SWAPPED = {PairVerdict.FAST: PairVerdict.SLOW, PairVerdict.SLOW: PairVerdict.FAST}
durations = st.floats(0.1, 1e7)
spreads = {"samples": st.just(nan) | st.integers(1, 1000)}
quiet = st.builds(call, durations, noise=st.just(nan) | st.floats(0, 0.2), **spreads)
any_calls = st.builds(
    call,
    durations,
    span=st.just("") | durations.map(str),
    kernels=st.sampled_from(["", *"12345"]),
    noise=st.just(nan) | st.floats(0, 1),
    quality=st.sampled_from(["", "quiet", "noisy", "bimodal", "throttled"]),
    cache=st.sampled_from(["", "cold", "warm"]),
    instrument=st.sampled_from(["", "cupti", "kineto"]),
    runs=st.sampled_from([(), (3.0, 3.1), (2.0, 2.5, 2.2)]),
    **spreads,
)


def changed(call: RowCall, **others: object) -> RowCall:
    assert call.duration is not None
    return replace(call, duration=call.duration._replace(**others))


def pair_of(baseline: RowCall, rival: RowCall) -> CallPair:
    pair = compare_calls(baseline, rival)
    assert pair is not None
    return pair


@given(any_calls, any_calls)
def test_swapped_calls_have_the_opposite_verdict(one: RowCall, other: RowCall) -> None:
    forth, back = pair_of(one, other), pair_of(other, one)
    assert back.verdict is SWAPPED.get(forth.verdict, forth.verdict)
    assert math.log(forth.speed_up) == pytest.approx(-math.log(back.speed_up), abs=1e-9)
    assert (forth.margin, forth.host_bound) == (pytest.approx(back.margin), back.host_bound)


@given(any_calls)
def test_a_call_is_the_same_as_itself(one: RowCall) -> None:
    assert pair_of(one, replace(one)).verdict is PairVerdict.SAME


@given(any_calls, any_calls)
def test_other_conditions_never_compare(one: RowCall, other: RowCall) -> None:
    differ = any(one.cell(name) != other.cell(name) for name in (CACHE_STATE, INSTRUMENT))
    assert (pair_of(one, other).verdict is PairVerdict.NOT_COMPARABLE) == differ


@given(quiet, quiet, durations)
def test_the_margin_decides_between_quiet_calls(one: RowCall, other: RowCall, us: float) -> None:
    spread = sum((0.1 if call.noise is None else call.noise) ** 2 / (call.samples or 1) for call in (one, other))
    margin = max(0.05, 3 * math.sqrt(spread))
    within = PairVerdict.AMBIGUOUS if 0.99 * margin > 0.05 else PairVerdict.SAME
    for difference, verdict in (
        (1.01 * margin, PairVerdict.FAST),
        (-1.01 * margin, PairVerdict.SLOW),
        (0.99 * margin, within),
        (-0.99 * margin, within),
        (0.049, PairVerdict.SAME),
        (-0.049, PairVerdict.SAME),
    ):
        rival = changed(other, median_us=us)
        assert pair_of(changed(one, median_us=us * math.exp(difference)), rival).verdict is verdict


@given(quiet, quiet, st.sampled_from(["bimodal", "throttled", ""]))
def test_an_unsteady_call_is_ambiguous_however_fast(one: RowCall, other: RowCall, quality: str) -> None:
    unsteady = changed(other, quality=Quality(quality)) if quality else changed(other, noise=0.201)
    assert pair_of(one, unsteady).verdict is PairVerdict.AMBIGUOUS
    assert pair_of(unsteady, one).verdict is PairVerdict.AMBIGUOUS


@given(quiet, quiet, st.integers(2, 1000))
def test_more_samples_never_widen_the_margin(one: RowCall, other: RowCall, samples: int) -> None:
    few, many = (pair_of(one, changed(other, samples=number)).margin for number in (samples - 1, samples))
    assert many <= few


@given(durations, durations, st.floats(0.2, 5), st.integers(1, 5))
def test_several_kernels_compare_by_their_span_unless_the_host_is_slow(
    one_us: float, other_us: float, gap: float, kernels: int
) -> None:
    assume(abs(gap - 1.2) > 1e-6)
    one = call(one_us, span=str(one_us), kernels="1")
    other = call(other_us, span=str(other_us * gap), kernels=str(kernels))
    pair = pair_of(one, other)
    assert pair.host_bound == (kernels > 1 and gap > 1.2)
    assert pair.rival_us == (other.span_us if kernels > 1 and gap < 1.2 else other_us)
    assert pair.baseline_us == one_us


@pytest.mark.parametrize("lost", [RowCall(), lost_call("failed"), lost_call("unsupported")])
def test_a_call_without_a_duration_makes_no_pair(lost: RowCall) -> None:
    here = call(1.0)
    assert compare_calls(here, lost) is None
    assert compare_calls(lost, here) is None


def simulated_call(random: Random, us: float, spread_of_runs: float, runs: int) -> RowCall:
    medians = tuple(us * math.exp(random.gauss(0, spread_of_runs)) for _ in range(runs))
    return call(median(medians), noise=0.01, samples=100, runs=medians if runs > 1 else ())


@pytest.mark.parametrize("runs", [(4, 1), (2, 5), (3, 3)])
def test_the_spread_of_pooled_runs_is_seldom_taken_for_a_difference(runs: tuple[int, int]) -> None:
    """Equal kernels, whose runs differ by 5 %: told as faster or slower four times less often than by samples alone."""
    random, wrong, by_samples = Random(27), 0, 0
    for _ in range(1000):
        calls = [simulated_call(random, 10.0, 0.05, count) for count in runs]
        wrong += pair_of(*calls).verdict in SWAPPED
        by_samples += pair_of(*(changed(each, run_id="of another run") for each in calls)).verdict in SWAPPED
    assert 4 * wrong < by_samples
    assert wrong < 80


@pytest.mark.parametrize("runs", [(4, 1), (3, 3)])
def test_a_difference_of_pooled_runs_is_found(runs: tuple[int, int]) -> None:
    random, found = Random(27), Counter[PairVerdict]()
    for _ in range(1000):
        baseline, rival = simulated_call(random, 12.0, 0.02, runs[0]), simulated_call(random, 10.0, 0.02, runs[1])
        found[pair_of(baseline, rival).verdict] += 1
    assert found[PairVerdict.FAST] >= 950


def test_a_run_is_alone_unless_others_were_pooled() -> None:
    """Without pooled runs nothing tells the spread of runs; one of two pooled calls tells it for both."""
    one, pooled = call(10.0, noise=0.0), simulated_call(Random(1), 10.0, 0.2, 3)
    assert pair_of(one, one).standard_error == 0
    assert pair_of(one, pooled).standard_error > pair_of(pooled, pooled).standard_error > 0


@given(st.lists(st.floats(1e-3, 1e3), max_size=20))
def test_a_mean_of_nothing_is_none_and_others_lie_within(ratios: list[float]) -> None:
    mean = geometric_mean(ratios)
    if not ratios:
        assert mean is None
    else:
        assert mean is not None
        assert min(ratios) * (1 - 1e-9) <= mean <= max(ratios) * (1 + 1e-9)
        assert geometric_mean([1 / ratio for ratio in ratios]) == pytest.approx(1 / mean)
