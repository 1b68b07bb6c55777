"""A row says when several operators were timed in the place of one kernel."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

import pytest
import torch
from replaying import job_of

from opatlas.row.quality import Quality
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.formula import pointwise
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import REST, describe_stand_in
from opatlas.run.kernel_call import count_operators, may_be_compiled
from opatlas.run.registry import replays
from opatlas.run.runner import Runner

ONE = "4,5 | FLOAT -> 4,5 | FLOAT"


@pointwise
def one_more(x):
    return x + 1


def through_numpy(x):
    return torch.from_numpy(x.numpy() + 1)


def in_two_steps(x):
    return x.T.add(0.5).add_(0.5).T


KERNELS = {"one": lambda x: x + 1, "views": lambda x: (x.T + 1).T, "numpy": through_numpy, "two": in_two_steps}


@replays("OneMore", npu="torch.add")
def of_a_kernel(row, replay):
    replay(KERNELS[row.cells["kernel"]], row.tensor(0), expected=one_more)


@replays("OwnKernel", npu=None)
def of_an_own_kernel(row, replay):
    replay(in_two_steps, row.tensor(0), expected=one_more)


def stand_in_of(outcome):
    assert outcome.status is Status.MEASURED, outcome
    return outcome.measurement.stand_in


@pytest.mark.parametrize(("kernel", "stands_in"), [("one", False), ("views", False), ("numpy", False), ("two", True)])
def test_several_operators_are_stand_ins_and_views_are_not(kernel, stands_in, monkeypatch):
    # Other tests compile; a kernel that may be compiled is not counted.
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    job = job_of("OneMore", ONE, f"{__name__}.of_a_kernel")
    job.cells["kernel"] = kernel
    outcome = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=1, cache="warm")).run(job)
    assert bool(stand_in_of(outcome)) is stands_in


def test_a_kernel_without_an_npu_call_is_not_a_stand_in(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch._dynamo", raising=False)
    job = job_of("OwnKernel", ONE, f"{__name__}.of_an_own_kernel")
    outcome = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=1, cache="warm")).run(job)
    assert stand_in_of(outcome) == ""
    assert outcome.measurement.verdict.quality is not Quality.COMPOSITION


def test_one_device_kernel_is_not_a_composition():
    assert describe_stand_in(["mul", "add"], 1) == ""
    assert describe_stand_in(["sort"], 21) == ""
    assert describe_stand_in([], 2) == ""
    assert "3 torch operators" in describe_stand_in(["mul", "add", "mul"], 3)
    assert "11 device kernels" in describe_stand_in(["mul", "add"], 11)


def test_a_call_that_cannot_be_counted_is_made_all_the_same():
    made = []

    def call():
        made.append(torch.ones(2))
        if len(made) == 1:
            raise RuntimeError("Creating a new Tensor subclass CausalBias but the raw Tensor object is already taken")
        made[-1].add_(1)

    operators = count_operators(call, call)
    assert operators == ["ones", REST]
    assert len(made) == 2
    assert "at least 2 " in describe_stand_in(operators, None)


class NpuLike:
    """A device with a call of its own for the kernel."""

    def __init__(self, device):
        self._device = device

    def __getattr__(self, name):
        return getattr(self._device, name)

    def kernel(self, impl, npu):
        return KERNELS["two"]


def test_a_devices_own_call_is_the_kernel_itself():
    runner = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=1, cache="warm"))
    runner.device = NpuLike(runner.device)
    job = job_of("OneMore", ONE, f"{__name__}.of_a_kernel")
    job.cells["kernel"] = "one"
    assert stand_in_of(runner.run(job)) == ""


def test_code_that_may_be_compiled_is_not_counted(monkeypatch):
    """torch uses no compiled code while operators are counted: the first call would not be that of the samples."""
    monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("torch._dynamo"))
    job = job_of("OneMore", ONE, f"{__name__}.of_a_kernel")
    job.cells["kernel"] = "two"
    outcome = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=1, cache="warm")).run(job)
    assert stand_in_of(outcome) == ""
    assert not may_be_compiled(torch.add)


@pytest.mark.parametrize("package", ["bench", "opatlas.bench"])
def test_torch_functions_of_replays_are_counted_whatever_their_package(monkeypatch, package: str):
    monkeypatch.setitem(sys.modules, "torch._dynamo", ModuleType("torch._dynamo"))
    assert not may_be_compiled(import_module(f"{package}.implementations.torch.norm").rms_norm)
