"""The end of sampling, on synthetic samples and a clock that the test advances."""

from __future__ import annotations

import random

import pytest

from opatlas.run.instruments.instrument import LEAST_SAMPLES, MOST_SAMPLES, SETTLED_WINDOW, StopRule


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def taken(rule, samples, clock=None, seconds_each=0.0):
    """How many samples the rule takes from an endless source."""
    so_far = []
    while not rule.enough(so_far):
        so_far.append(next(samples))
        if clock:
            clock.now += seconds_each
        assert len(so_far) <= 10_000
    return len(so_far)


def constant(value=20.0):
    while True:
        yield value


def noisy(spread, seed=1):
    source = random.Random(seed)
    while True:
        yield 20.0 * (1 + source.gauss(0, spread))


def drifting():
    """Each sample doubles the one before: noise that never settles."""
    value = 1.0
    while True:
        value *= 2
        yield value


@pytest.mark.parametrize("count", [1, 3, 1000])
def test_repeat_count_is_exact(count):
    clock = Clock()
    rule = StopRule(repeat_count=count, time_limit_s=1.0, clock=clock)
    assert taken(rule, noisy(0.5), clock, seconds_each=10.0) == count


@pytest.mark.parametrize("samples", [constant(), constant(0.0), noisy(0.001), noisy(0.01)])
def test_quiet_samples_and_a_precise_mean_end_at_the_least_number(samples):
    assert taken(StopRule(repeat_count=None, time_limit_s=5, clock=Clock()), samples) == LEAST_SAMPLES


def test_noise_that_has_settled_ends_it():
    count = taken(StopRule(repeat_count=None, time_limit_s=5, clock=Clock()), noisy(0.2))
    assert LEAST_SAMPLES + SETTLED_WINDOW <= count < MOST_SAMPLES


def test_noise_that_never_settles_ends_at_the_most():
    assert taken(StopRule(repeat_count=None, time_limit_s=5, clock=Clock()), drifting()) <= MOST_SAMPLES


def test_time_limit_ends_it_after_one_sample_at_least():
    for seconds_each, least in ((2.0, 3), (10.0, 1)):
        clock = Clock()
        rule = StopRule(repeat_count=None, time_limit_s=5, clock=clock)
        assert taken(rule, noisy(0.2), clock, seconds_each) == least


def test_time_counts_from_the_first_question():
    clock = Clock()
    rule = StopRule(repeat_count=None, time_limit_s=5, clock=clock)
    clock.now += 1000
    assert taken(rule, constant(), clock, seconds_each=0.1) == LEAST_SAMPLES


def test_an_outlier_late_does_not_start_it_anew():
    values = [20.0] * 9 + [60.0] + [20.0] * 500
    count = taken(StopRule(repeat_count=None, time_limit_s=5, clock=Clock()), iter(values))
    assert LEAST_SAMPLES < count <= MOST_SAMPLES
