"""The instruments that time whole calls, the end of sampling, and samples of a throttled device."""

from __future__ import annotations

import gc
import random
from itertools import repeat

import pytest

from opatlas.run.devices.cuda import UnthrottledInstrument
from opatlas.run.instruments import instrument as wall_clock
from opatlas.run.instruments.instrument import (
    LEAST_SAMPLES,
    MOST_SAMPLES,
    SETTLED_WINDOW,
    DeviceEvents,
    Samples,
    StopRule,
    WallClock,
)


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


HOT = ("hardware thermal slowdown",)


def unhurried():
    return StopRule(repeat_count=None, time_limit_s=60)


class Steady:
    """Takes one sample at each call, each longer than the last."""

    name = "steady"

    def __init__(self, first_us):
        self.taken = first_us

    def sample(self, call, before_each, rule):
        assert not rule.enough([])
        self.taken += 1
        return Samples((self.taken,))


class OfGroup(StopRule):
    """A rank does not sample again by itself."""

    def again(self):
        return None


@pytest.mark.parametrize(
    ("said", "first_us", "rule", "durations_us", "throttled", "pauses"),
    [
        ([HOT, HOT, HOT, (), ()], 0.0, unhurried, (1.0,), False, 3),
        ([(), HOT, HOT, (), ()], 0.0, unhurried, (2.0,), False, 1),
        ([(), HOT, HOT, (), HOT], 0.0, unhurried, (2.0,), True, 1),
        # A long row is taken again at once.
        ([(), HOT, HOT], 200_000.0, unhurried, (200_002.0,), True, 1),
        (repeat(HOT), 0.0, unhurried, (1.0,), True, None),
        # The time limit counts over all tries.
        (
            [(), HOT],
            0.0,
            lambda: StopRule(repeat_count=None, time_limit_s=5, clock=iter([0.0, 5.0, 5.0]).__next__),
            (1.0,),
            True,
            0,
        ),
        ([(), HOT], 0.0, lambda: OfGroup(repeat_count=1, time_limit_s=5), (1.0,), True, 0),
    ],
)
def test_throttled_samples_are_taken_again_after_a_pause_or_kept_and_told(
    said, first_us, rule, durations_us, throttled, pauses
):
    """`said`: what a device says, one after the other, of its clocks."""
    answers, paused_s = iter(said), []
    watched = UnthrottledInstrument(Steady(first_us), lambda: next(answers), paused_s.append)
    samples = watched.sample(lambda: None, None, rule())
    assert samples.durations_us == durations_us
    assert (HOT[0] in samples.throttled) is throttled
    if pauses is None:
        assert sum(paused_s) == pytest.approx(0.5)
    else:
        assert len(paused_s) == pauses


def test_the_device_rests_behind_samples_that_take_long():
    paused_s = []
    for first_us, rests in ((100.0, []), (20_000.0, [0.06])):
        UnthrottledInstrument(Steady(first_us), tuple, paused_s.append).sample(lambda: None, None, unhurried())
        assert paused_s == rests


def test_no_garbage_is_collected_in_between(clock):
    seen = []
    WallClock().sample(lambda: seen.append(gc.isenabled()), lambda: None, rule())
    assert seen == [False] * 3
    assert gc.isenabled()
