"""The verdict on samples: each quality by samples that have it, and none by samples that do not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, strategies as st

from opatlas.row.quality import NOISE_LIMIT, Quality, judge, relative_noise, typical_mean, without_outliers

DURATIONS = st.lists(st.floats(0.01, 1e9), min_size=1, max_size=60)


def around(middle: float, spread: float, count: int, seed: int = 1) -> list[float]:
    """Normal samples with a relative standard deviation of `spread`."""
    drawn = random.Random(seed)
    return [max(drawn.gauss(middle, middle * spread), middle / 100) for _ in range(count)]


@pytest.mark.parametrize(
    ("samples", "quality"),
    [
        ([10.0], Quality.UNKNOWN),
        ([10.0, 30.0], Quality.UNKNOWN),
        ([10.0, 10.1, 9.9], Quality.QUIET),
        (around(100, 0.02, 20), Quality.QUIET),
        (around(100, 0.25, 40), Quality.NOISY),
        ([10.0, 10.1, 30.0], Quality.NOISY),
        ([100.0 + step for step in range(0, 60, 2)], Quality.DRIFTING),
        ([160.0 - step for step in range(0, 60, 2)], Quality.DRIFTING),
        (around(100, 0.01, 10) + around(130, 0.01, 10), Quality.BIMODAL),
        (
            [pair for two in zip(around(100, 0.01, 9), around(108, 0.005, 9), strict=True) for pair in two],
            Quality.BIMODAL,
        ),
    ],
)
def test_each_quality_has_samples_of_its_own(samples: list[float], quality: Quality) -> None:
    assert judge(samples).quality is quality


@pytest.mark.parametrize("count", [10, 20, 200])
def test_neighbouring_ticks_of_a_coarse_clock_are_no_modes(count: int) -> None:
    ticks = [round(sample * 2) / 2 for sample in around(6.2, 0.04, count)]
    assert len(set(ticks)) > 1
    assert judge(ticks).quality is Quality.QUIET
    far = [*ticks, *(tick + 4.0 for tick in ticks)]
    assert judge(far).quality is Quality.BIMODAL


#: Of a noisy machine, where other programs took more than a quarter of the samples for a time slice or two.
PREEMPTED = [*around(263, 0.15, 34), 2285.0, *around(7000, 0.15, 18), *around(16000, 0.001, 3)]


@pytest.mark.parametrize(
    ("samples", "outliers", "mean"),
    [
        (PREEMPTED, 22, 263.0),
        ([*around(100, 0.01, 12), *around(900, 0.01, 8)], 8, 100.0),
        ([10.0] * 9 + [5000.0], 1, 10.0),
        ([100.0] * 9 + [10.0], 1, 100.0),
        (around(100, 0.25, 60), 0, 100.0),
        ([*around(100, 0.001, 12), *around(108, 0.001, 8)], 0, 103.2),
        ([10.0, 10.0, 40.0], 0, 20.0),
    ],
)
def test_the_stored_mean_has_no_outliers(samples: list[float], outliers: int, mean: float) -> None:
    drawn = random.Random(2).sample(samples, len(samples))
    verdict = judge(drawn)
    assert verdict.outliers == outliers
    assert (f"{outliers} of {len(samples)}" in verdict.reason) == bool(outliers)
    assert typical_mean(drawn) == pytest.approx(mean, rel=0.05)


@given(DURATIONS)
def test_at_least_half_of_the_samples_are_no_outliers(samples: list[float]) -> None:
    kept = without_outliers(samples)
    assert 2 * len(kept) >= len(samples)
    assert min(kept) <= typical_mean(samples) * (1 + 1e-12)
    assert typical_mean(samples) <= max(kept) * (1 + 1e-12)


def test_what_the_device_said_counts_for_more_than_the_samples() -> None:
    noisy = around(100, 0.3, 20)
    assert judge(noisy, throttled="power cap").quality is Quality.THROTTLED
    assert judge(noisy, throttled="power cap", bound_us=300.0).quality is Quality.ABOVE_ROOFLINE
    assert judge(around(100, 0.01, 20), bound_us=99.0).quality is Quality.QUIET


@given(st.floats(0.5, 2.0), st.integers(3, 60), st.integers(0, 999))
def test_noise_does_not_depend_on_the_unit(scale: float, count: int, seed: int) -> None:
    samples = around(100, 0.2, count, seed)
    scaled = [sample * scale for sample in samples]
    assert relative_noise(scaled) == pytest.approx(relative_noise(samples))
    assert judge(scaled).quality is judge(samples).quality


@given(DURATIONS)
def test_every_row_of_samples_has_a_verdict(samples: list[float]) -> None:
    verdict = judge(samples)
    noise = relative_noise(samples)
    assert 0 <= verdict.outliers <= len(samples)
    assert verdict.quality is not Quality.QUIET or (noise is not None and noise <= NOISE_LIMIT)
    assert verdict.quality is Quality.QUIET or verdict.reason
