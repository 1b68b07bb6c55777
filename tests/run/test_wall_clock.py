"""The wall clock: how it calls the timed function."""

from __future__ import annotations

import gc

import pytest

from opatlas.run.instruments import timers as wall_clock
from opatlas.run.instruments.instrument import StopRule
from opatlas.run.instruments.timers import WallClock


@pytest.fixture
def clock(monkeypatch):
    """A clock that only `tick`s move, in nanoseconds."""

    class Clock:
        now = 0

        def tick(self, nanoseconds):
            self.now += nanoseconds

    clock = Clock()
    monkeypatch.setattr(wall_clock, "perf_counter_ns", lambda: clock.now)
    return clock


def rule(count=3):
    return StopRule(repeat_count=count, time_limit_s=1.0)


def test_a_sample_is_one_call_where_something_runs_before_it(clock):
    order = []

    def call():
        order.append("call")
        clock.tick(7_000)

    def before():
        order.append("before")
        clock.tick(900_000)

    samples = WallClock().sample(call, before, rule())
    assert samples.durations_us == (7.0, 7.0, 7.0)
    assert samples.calls_per_sample == 1
    assert order == ["before", "call"] * 3


@pytest.mark.parametrize("nanoseconds", [100, 7_000, 49_999, 50_000, 3_000_000])
def test_short_calls_are_averaged_until_the_clock_resolves_them(clock, nanoseconds):
    samples = WallClock().sample(lambda: clock.tick(nanoseconds), None, rule())
    assert samples.durations_us == pytest.approx([nanoseconds / 1000] * 3)
    assert samples.calls_per_sample * nanoseconds >= 50_000
    assert samples.calls_per_sample == 1 or (samples.calls_per_sample - 1) * nanoseconds < 50_000


def test_calls_too_short_for_the_clock_are_bounded(clock):
    calls = 0

    def call():
        nonlocal calls
        calls += 1

    samples = WallClock().sample(call, None, rule(1))
    assert samples.calls_per_sample == 10_000
    assert calls < 40_000


def test_no_garbage_is_collected_in_between(clock):
    seen = []
    WallClock().sample(lambda: seen.append(gc.isenabled()), lambda: None, rule())
    assert seen == [False] * 3
    assert gc.isenabled()


def test_collector_is_on_again_after_an_error(clock):
    def call():
        raise RuntimeError("the kernel failed")

    with pytest.raises(RuntimeError):
        WallClock().sample(call, lambda: None, rule())
    assert gc.isenabled()


def test_it_does_not_know_of_device_kernels(clock):
    assert WallClock().sample(lambda: clock.tick(1), lambda: None, rule()).device_kernels is None
