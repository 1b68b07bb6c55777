"""Device events, with a clock in their place: the work between them is the sample, the work before is not."""

from __future__ import annotations

import pytest

from opatlas.run.instruments.instrument import StopRule
from opatlas.run.instruments.timers import DeviceEvents


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


def sample(events, call, before_each):
    return events.sample(call, before_each, StopRule(repeat_count=2, time_limit_s=60))


def test_preparation_before_each_call_is_not_in_its_sample(stream, events):
    samples = sample(events, lambda: stream.work(15.5, "call"), lambda: stream.work(40, "flush"))
    assert samples.durations_us == pytest.approx((15.5, 15.5))
    assert samples.calls_per_sample == 1
    assert stream.log == ["flush", "wait", "record", "call", "record", "synchronize"] * 2


@pytest.mark.parametrize(("microseconds", "calls"), [(2_000, 1), (300, 4), (10, 101), (0, 1_000)])
def test_short_calls_in_a_row_are_averaged(stream, events, microseconds, calls):
    samples = sample(events, lambda: stream.work(microseconds, "call"), None)
    assert samples.durations_us == pytest.approx((microseconds, microseconds))
    assert samples.calls_per_sample == calls


def test_the_number_of_device_kernels_is_unknown(stream, events):
    assert sample(events, lambda: stream.work(1, "call"), lambda: None).device_kernels is None
