"""The choice of instruments, and their contract (docs/contributing.md) for each that a CPU offers."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from time import thread_time_ns
from types import SimpleNamespace

import pytest
from replaying import job_of

from opatlas.errors import OpAtlasError
from opatlas.run.devices.cpu import Cpu
from opatlas.run.devices.device import DeviceKind, DeviceSpec, InstrumentMissing, kind_named
from opatlas.run.instruments.instrument import MeasureSettings, Samples
from opatlas.run.runner import Runner


class Sundial:
    """An instrument that is as good as no other."""

    name = "sundial"

    def sample(self, call, before_each, rule):
        call()
        return Samples((3.6e9,))


@pytest.fixture
def _sundials(monkeypatch):
    monkeypatch.setitem(sys.modules, "sundials", SimpleNamespace(of=lambda kind, settings: Sundial()))
    monkeypatch.setattr(Cpu, "instruments", {**Cpu.instruments, Sundial.name: "sundials:of"})


def test_the_first_one_is_taken_by_default(monkeypatch):
    assert kind_named("cpu").preferred_instrument(None) == "wall-clock"
    assert kind_named("npu").preferred_instrument(None) == "msprof"
    # A group cannot start and stop CANN's profiler for each message.
    monkeypatch.setenv("PATH", "")
    assert kind_named("npu").group_instrument(None) == "npu-events"


def test_one_that_the_device_does_not_offer_is_refused_with_the_list():
    offered = ", ".join(Cpu.instruments)
    with pytest.raises(OpAtlasError, match=rf"sundial: .* {offered}$"):
        kind_named("cpu").open_instrument(MeasureSettings(instrument="sundial"))


@pytest.mark.usefixtures("_sundials")
@pytest.mark.parametrize(("asked", "taken"), [(None, "wall-clock"), ("sundial", "sundial")])
def test_a_row_is_measured_by_the_named_one(asked, taken):
    runner = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=1, cache="warm", instrument=asked))
    outcome = runner.run(job_of("Neg", "4 | FLOAT -> 4 | FLOAT"))
    assert outcome.measurement is not None
    assert outcome.measurement.instrument == taken


@pytest.mark.parametrize(("took", "status"), [("", "measured"), ("wall-clock", "measured"), ("cupti", "skipped")])
def test_a_duration_is_replaced_only_by_the_instrument_that_took_it(took, status):
    """The best instrument may be missing on a machine, which only the device process finds out."""
    runner = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=1, cache="warm"))
    outcome = runner.run(replace(job_of("Neg", "4 | FLOAT -> 4 | FLOAT"), instrument=took))
    assert str(outcome.status) == status


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


def missing(kind, settings):
    raise InstrumentMissing("no such library")


@pytest.mark.parametrize(
    ("named", "makers", "expected"),
    [
        (None, ["missing", "second"], nullcontext("second")),
        ("missing", ["missing", "second"], pytest.raises(InstrumentMissing, match=r"^missing: no such library$")),
        (None, ["missing"], pytest.raises(InstrumentMissing, match="missing: no such library")),
        (None, ["broken", "second"], pytest.raises(ZeroDivisionError)),
    ],
)
def test_the_next_best_replaces_a_missing_one_that_was_not_named(monkeypatch, named, makers, expected):
    offered = {"missing": missing, "second": lambda kind, settings: "second", "broken": lambda kind, settings: 1 / 0}
    monkeypatch.setitem(sys.modules, "toy_makers", SimpleNamespace(**offered))
    kind = DeviceKind("toy")
    kind.instruments = {maker: f"toy_makers:{maker}" for maker in makers}
    with expected as opened:
        assert kind.open_instrument(MeasureSettings(instrument=named)) == opened
