"""The contract of instruments (docs/contributing.md), for each that a CPU offers."""

from __future__ import annotations

from time import thread_time_ns

import pytest

from opatlas.run.devices.device import InstrumentMissing, kind_named
from opatlas.run.instruments.instrument import MeasureSettings

SAMPLES = 3
CALL_US, FLUSH_US = 2_000, 50_000


@pytest.fixture(params=kind_named("cpu").instruments)
def instrument(request):
    try:
        return kind_named("cpu").open_instrument(MeasureSettings(instrument=request.param))
    except InstrumentMissing as error:
        pytest.skip(str(error))


class Asked:
    """A rule that has enough after some samples, and keeps count of how often it was asked."""

    def __init__(self):
        self.times = 0

    def enough(self, samples_us):
        return self.enough_count(len(samples_us))

    def enough_count(self, count):
        self.times += 1
        return count >= SAMPLES

    def batch(self, count):
        return 1

    def again(self):
        return None


def busy(microseconds):
    """Works for at least so long, by the clock of every instrument: this thread's own is the slowest of all."""
    until = thread_time_ns() + microseconds * 1000
    while thread_time_ns() < until:
        pass


def test_its_name_is_that_of_the_option(instrument, request):
    assert instrument.name == request.node.callspec.params["instrument"]


def test_it_asks_the_rule_before_each_sample(instrument):
    rule = Asked()
    samples = instrument.sample(lambda: None, lambda: None, rule)
    assert len(samples.durations_us) == SAMPLES
    assert rule.times == SAMPLES + 1


def test_preparation_runs_once_before_each_sample_and_not_in_it(instrument):
    order = []

    def before_each():
        busy(FLUSH_US)
        order.append("before")

    samples = instrument.sample(lambda: order.append("call"), before_each, Asked())
    assert order == ["before", "call"] * SAMPLES
    assert samples.calls_per_sample == 1
    # A machine may hold up some of them for as long, but not all.
    assert min(samples.durations_us) < FLUSH_US


def test_a_duration_is_that_of_one_call_in_microseconds(instrument):
    calls = []

    def call():
        calls.append(busy(CALL_US))

    samples = instrument.sample(call, None, Asked())
    assert len(samples.durations_us) == SAMPLES
    assert len(calls) >= SAMPLES * samples.calls_per_sample
    # A clock that ticks in microseconds may lose one; nanoseconds or milliseconds would be far off.
    assert CALL_US - 1 <= min(samples.durations_us) < 1000 * CALL_US
    assert samples.device_kernels is None or samples.device_kernels >= 0


def test_an_exception_of_a_call_propagates(instrument):
    with pytest.raises(ZeroDivisionError):
        instrument.sample(lambda: 1 / 0, lambda: None, Asked())
