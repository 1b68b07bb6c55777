"""Rounds: the interval of their ratios, its verdict, and what two processes say together."""

from __future__ import annotations

import random

import pytest

from opatlas.row.rounds import PairVerdict, RatioInterval, of_processes, ratio_interval


def rounds(difference: float, count: int, spread: float, seed: int) -> tuple[list[float], list[float]]:
    """Samples of a kernel that takes `difference` times as long, whose level drifts with that of the baseline."""
    drawn = random.Random(seed)
    levels = [100 * (1 + 0.5 * i / count) for i in range(count)]
    return (
        [level * drawn.lognormvariate(0, spread) for level in levels],
        [level * difference * drawn.lognormvariate(0, spread) for level in levels],
    )


def test_the_same_code_is_never_faster() -> None:
    verdicts = [ratio_interval(*rounds(1.0, 30, 0.15, seed)).verdict() for seed in range(1000)]
    assert sum(each.is_definite for each in verdicts) <= 3


@pytest.mark.parametrize(("difference", "verdict"), [(1.1, PairVerdict.SLOW), (0.9, PairVerdict.FAST)])
def test_a_tenth_is_found(difference: float, verdict: PairVerdict) -> None:
    found = [ratio_interval(*rounds(difference, 40, 0.05, seed)).verdict() for seed in range(200)]
    assert found.count(verdict) >= 190


def test_quiet_rounds_of_the_same_code_are_the_same() -> None:
    found = ratio_interval(*rounds(1.0, 30, 0.01, 1))
    assert found.verdict() is PairVerdict.SAME
    assert found.low <= 1 <= found.high
    # A machine whose controls differ by more tells less.
    assert ratio_interval(*rounds(1.1, 40, 0.01, 1)).verdict(threshold=0.2) is PairVerdict.AMBIGUOUS


def test_an_outlier_decides_nothing() -> None:
    ours, theirs = rounds(1.0, 30, 0.01, 2)
    assert ratio_interval([1000 * ours[0], *ours[1:]], theirs).verdict() is PairVerdict.SAME


def test_few_rounds_tell_nothing() -> None:
    found = ratio_interval([12.0] * 9, [10.0] * 9)
    assert (found.low, found.high) == pytest.approx((1.2, 1.2))
    assert found.verdict() is PairVerdict.AMBIGUOUS
    assert ratio_interval([12.0] * 10, [10.0] * 10).verdict() is PairVerdict.FAST


@pytest.mark.parametrize(
    ("second", "verdict"),
    [
        (RatioInterval(1.2, 1.1, 1.3, 40), PairVerdict.FAST),
        (RatioInterval(1.0, 0.9, 1.1, 40), PairVerdict.AMBIGUOUS),
        (RatioInterval(0.8, 0.7, 0.9, 40), PairVerdict.AMBIGUOUS),
    ],
)
def test_two_processes_have_to_agree(second: RatioInterval, verdict: PairVerdict) -> None:
    first = RatioInterval(1.3, 1.2, 1.4, 30)
    assert of_processes([first, second]).verdict() is verdict
    assert of_processes([second, first]).rounds == 30
