"""The choice of instruments, and the refusal of one that a device does not offer."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
from replaying import job_of

from opatlas.errors import OpAtlasError
from opatlas.run.devices.cpu import Cpu, CpuDevice
from opatlas.run.devices.device import DeviceSpec, kind_named
from opatlas.run.instruments.instrument import (
    MeasureSettings,
    Samples,
)
from opatlas.run.instruments.timers import WallClock
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


def test_a_device_that_does_not_heed_the_choice_is_not_opened(monkeypatch):
    monkeypatch.setattr(CpuDevice, "instrument", lambda device: WallClock())
    with pytest.raises(OpAtlasError, match=r"sundial: .*wall-clock"):
        Runner(DeviceSpec("cpu"), MeasureSettings(instrument="sundial"))


def test_the_kind_of_a_device_is_that_of_its_spec():
    runner = Runner(DeviceSpec("toy", opener="opatlas.run.devices.cpu:CpuDevice"), MeasureSettings())
    assert runner.describe().kind == "toy"


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
