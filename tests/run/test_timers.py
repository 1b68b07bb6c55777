"""The instruments that time whole calls: how they call the timed function, and what lies in a sample."""

from __future__ import annotations

import gc

import pytest

from opatlas.run.instruments import timers as wall_clock
from opatlas.run.instruments.instrument import StopRule
from opatlas.run.instruments.timers import DeviceEvents, WallClock


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


class Stream:
    """A stream whose work takes as long as it is said to, in microseconds."""

    def __init__(self):
        self.now_us = 0.0
        self.log = []

    def work(self, microseconds, name):
        self.now_us += microseconds
        self.log.append(name)


@pytest.fixture
def stream():
    return Stream()


@pytest.fixture
def events(stream):
    class Event:
        def record(self):
            self.at = stream.now_us
            stream.log.append("record")

        def synchronize(self):
            stream.log.append("synchronize")

        def elapsed_time(self, end_event):
            return (end_event.at - self.at) / 1000

    return DeviceEvents("toy-events", Event, lambda: stream.log.append("wait"))


def test_preparation_before_each_call_is_not_in_its_sample(stream, events):
    samples = events.sample(lambda: stream.work(15.5, "call"), lambda: stream.work(40, "flush"), rule(2))
    assert samples.durations_us == pytest.approx((15.5, 15.5))
    assert samples.calls_per_sample == 1
    assert stream.log == ["flush", "wait", "record", "call", "record", "synchronize"] * 2


@pytest.mark.parametrize(("microseconds", "calls"), [(2_000, 1), (300, 4), (10, 100), (0, 1_000)])
def test_short_calls_in_a_row_are_averaged(stream, events, microseconds, calls):
    samples = events.sample(lambda: stream.work(microseconds, "call"), None, rule(2))
    assert samples.durations_us == pytest.approx((microseconds, microseconds))
    assert samples.calls_per_sample == calls
