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
from hypothesis import assume, given, strategies as st

from opatlas.ask.compare.calls import (
    LEAST_SPREAD,
    SPREAD_OF_WALL_CLOCK,
    SPREAD_ON_DEVICE,
    Basis,
    CallPair,
    Controls,
    RowCall,
    compare_calls,
    controls_by_run,
)
from opatlas.row.columns import CACHE_STATE, INSTRUMENT
from opatlas.row.quality import Quality
from opatlas.row.rounds import PairVerdict, mean_of, two_sided_p, two_sided_t

SWAPPED = {PairVerdict.FAST: PairVerdict.SLOW, PairVerdict.SLOW: PairVerdict.FAST}
durations = st.floats(0.1, 1e7)
spreads = {"samples": st.just(nan) | st.integers(1, 1000)}
quiet = st.builds(call, durations, noise=st.just(nan) | st.floats(0, 0.2), instrument=st.just("cupti"), **spreads)
in_rounds = st.sampled_from([{}, {"ratio": "1.2", "low": "1.1", "high": "1.3", "rounds": "40;40", "against": "torch"}])


def any_call(rounds: dict[str, str], **others: object) -> RowCall:
    return call(**others, **rounds)  # type: ignore[arg-type]


any_calls = st.builds(
    any_call,
    in_rounds,
    us=durations,
    span=st.just("") | durations.map(str),
    kernels=st.sampled_from(["", *"12345"]),
    noise=st.just(nan) | st.floats(0, 1),
    quality=st.sampled_from(["", "quiet", "noisy", "bimodal", "throttled"]),
    cache=st.sampled_from(["", "cold", "warm"]),
    instrument=st.sampled_from(["", "cupti", "kineto"]),
    implementation=st.sampled_from(["torch", "liger"]),
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
    # Of one run only one of the two is the baseline of the other's rounds.
    assume(not (one.rounds and other.rounds))
    forth, back = pair_of(one, other), pair_of(other, one)
    assert back.verdict is SWAPPED.get(forth.verdict, forth.verdict)
    assert math.log(forth.speed_up) == pytest.approx(-math.log(back.speed_up), abs=1e-9)
    assert math.log(forth.ratios.low) == pytest.approx(-math.log(back.ratios.high), abs=1e-9)
    assert (forth.margin, forth.host_bound) == (pytest.approx(back.margin), back.host_bound)


@given(any_calls)
def test_a_call_is_the_same_as_itself(one: RowCall) -> None:
    assume(not one.rounds)
    assert pair_of(one, replace(one)).verdict is PairVerdict.SAME


@given(any_calls, any_calls)
def test_other_conditions_never_compare(one: RowCall, other: RowCall) -> None:
    differ = any(one.cell(name) != other.cell(name) for name in (CACHE_STATE, INSTRUMENT))
    assert (pair_of(one, other).verdict is PairVerdict.NOT_COMPARABLE) == differ


@given(quiet, quiet, durations)
def test_the_margin_decides_between_quiet_calls(one: RowCall, other: RowCall, us: float) -> None:
    spread = sum((0.1 if call.noise is None else call.noise) ** 2 / (call.samples or 1) for call in (one, other))
    margin = max(0.05, 3 * math.sqrt(spread + 2 * SPREAD_ON_DEVICE**2))
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
    return call(median(medians), noise=0.01, samples=100, runs=medians if runs > 1 else (), instrument="cupti")


@pytest.mark.parametrize("runs", [(4, 1), (2, 5), (3, 3)])
def test_the_spread_of_pooled_runs_is_seldom_taken_for_a_difference(runs: tuple[int, int]) -> None:
    """Equal kernels, whose runs differ by 5 %: told as faster or slower much less often than by a device's default."""
    random, wrong, by_default = Random(27), 0, 0
    for _ in range(1000):
        calls = [simulated_call(random, 10.0, 0.05, count) for count in runs]
        wrong += pair_of(*calls).verdict in SWAPPED
        by_default += pair_of(*(changed(each, run_id="of another run") for each in calls)).verdict in SWAPPED
    assert 2 * wrong < by_default
    assert wrong <= 10


@pytest.mark.parametrize("runs", [(4, 1), (3, 3)])
def test_a_difference_of_pooled_runs_is_found(runs: tuple[int, int]) -> None:
    random, found = Random(27), Counter[PairVerdict]()
    for _ in range(1000):
        baseline, rival = simulated_call(random, 12.0, 0.02, runs[0]), simulated_call(random, 10.0, 0.02, runs[1])
        found[pair_of(baseline, rival).verdict] += 1
    assert found[PairVerdict.FAST] >= 750


@pytest.mark.parametrize(
    ("instrument", "spread"),
    [("cupti", SPREAD_ON_DEVICE), ("npu-events", SPREAD_ON_DEVICE), ("wall-clock", 0.1), ("", SPREAD_OF_WALL_CLOCK)],
)
def test_sessions_without_pooled_runs_differ_by_the_default_of_their_instrument(instrument: str, spread: float) -> None:
    one = call(10.0, noise=0.0, instrument=instrument)
    pair = pair_of(one, changed(one, median_us=11.0))
    assert (pair.basis, pair.spread) == (Basis.DEFAULT, spread)
    assert math.log(pair.ratios.high / pair.speed_up) == pytest.approx(3 * spread * math.sqrt(2))


def test_one_of_two_pooled_calls_tells_the_spread_for_both() -> None:
    one, pooled = call(10.0, noise=0.0), simulated_call(Random(1), 10.0, 0.2, 3)
    alone, both = pair_of(one, pooled), pair_of(pooled, pooled)
    assert alone.basis is both.basis is Basis.POOLED_RUNS
    assert alone.margin > both.margin > LEAST_SPREAD


BASELINE = call(10.0, implementation="torch 2.13.0", noise=0.5, quality="bimodal")


def with_rounds(ratio: float, low: float, high: float, rounds: str = "40;40", **others: str) -> RowCall:
    cells = {"ratio": f"{ratio}", "low": f"{low}", "high": f"{high}", "rounds": rounds, "against": "torch 2.13.0"}
    return call(10.0, noise=0.5, **{**cells, **others})


@pytest.mark.parametrize(
    ("rival", "verdict", "reason"),
    [
        (with_rounds(1.2, 1.1, 1.3), PairVerdict.FAST, ""),
        (with_rounds(0.8, 0.7, 0.9), PairVerdict.SLOW, ""),
        (with_rounds(1.0, 0.98, 1.02), PairVerdict.SAME, ""),
        (with_rounds(1.2, 0.9, 1.3), PairVerdict.AMBIGUOUS, "interval"),
        (with_rounds(1.2, 1.1, 1.3, "40"), PairVerdict.AMBIGUOUS, "another process"),
        (with_rounds(1.0, 0.98, 1.02, "40"), PairVerdict.SAME, ""),
        (with_rounds(1.2, 1.1, 1.3, quality="bimodal"), PairVerdict.FAST, ""),
        (with_rounds(1.2, 1.1, 1.3, quality="throttled"), PairVerdict.AMBIGUOUS, "throttled"),
    ],
)
def test_rounds_decide_whatever_the_samples_are(rival: RowCall, verdict: PairVerdict, reason: str) -> None:
    pair = pair_of(BASELINE, rival)
    assert (pair.basis, pair.verdict, pair.spread) == (Basis.ROUNDS, verdict, None)
    assert reason in pair.reason
    assert bool(pair.reason) == bool(reason)
    swapped = pair_of(rival, BASELINE)
    assert (swapped.verdict, swapped.speed_up) == (SWAPPED.get(verdict, verdict), 1 / pair.speed_up)


def test_rounds_count_until_the_baseline_is_measured_anew() -> None:
    rival = with_rounds(1.2, 1.1, 1.3)
    assert pair_of(changed(BASELINE, run_id="."), rival).basis is Basis.ROUNDS
    assert pair_of(changed(BASELINE, run_id="1"), rival).basis is Basis.DEFAULT
    assert pair_of(BASELINE, rival).run_id == pair_of(rival, BASELINE).run_id == "0"


@pytest.mark.parametrize(
    "rival",
    [
        with_rounds(1.2, 1.1, 1.3, against="liger 0.8"),
        call(10.0, ratio="1.2", low="damaged", high="1.3", rounds="40;40", against="torch 2.13.0"),
        with_rounds(1.2, 1.1, 1.3, rounds=""),
    ],
)
def test_rounds_with_another_baseline_or_damaged_ones_decide_nothing(rival: RowCall) -> None:
    assert pair_of(BASELINE, rival).basis is Basis.DEFAULT


def test_the_controls_of_a_run_widen_its_threshold() -> None:
    rival = with_rounds(1.15, 1.1, 1.3)
    # Robust: one control that is far off decides nothing.
    ratios = [1.04, 0.96, 1.09, 3.0, 0.99]
    (found,) = controls_by_run([*(with_rounds(1, 0.99, 1.01, control=str(each)) for each in ratios), rival]).values()
    assert (found.run_id, found.rows) == ("0", 5)
    assert found.spread == pytest.approx(-math.log(0.96) / 0.6745)
    assert found.threshold == pytest.approx(2 * (math.log(1.09) - 0.01), rel=0.01)
    pair = compare_calls(BASELINE, rival, {"0": found})
    assert pair is not None
    assert (pair.verdict, pair.margin) == (PairVerdict.AMBIGUOUS, found.threshold)
    # Controls that differ within their intervals are as they should be.
    noisy = [with_rounds(1, 0.8, 1.25, control="1.2")] * 5
    assert controls_by_run(noisy)["0"].threshold == 0.05
    assert controls_by_run([rival]) == {"0": Controls("0")}
    assert Controls("0").threshold == 0.05


@given(st.lists(st.floats(1e-3, 1e3), max_size=20))
def test_a_mean_of_nothing_is_none_and_others_lie_within(ratios: list[float]) -> None:
    mean, inverse = mean_of(ratios), mean_of([1 / ratio for ratio in ratios])
    assert mean.rows == len(ratios)
    if mean.ratio is None or inverse.ratio is None:
        assert not ratios
        return
    assert min(ratios) * (1 - 1e-9) <= mean.ratio <= max(ratios) * (1 + 1e-9)
    assert inverse.ratio == pytest.approx(1 / mean.ratio)
    assert (mean.low is None) == (len(ratios) < 2)
    if mean.low is not None and mean.high is not None:
        assert mean.low <= mean.ratio <= mean.high


@pytest.mark.parametrize(("freedom", "t"), [(1, 12.706), (3, 3.182), (10, 2.228), (1000, 1.962)])
def test_quantiles_of_student(freedom: int, t: float) -> None:
    assert two_sided_t(0.05, freedom) == pytest.approx(t, abs=1e-3)
    assert two_sided_p(t, freedom) == pytest.approx(0.05, abs=2e-4)
