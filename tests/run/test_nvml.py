"""Readings of a GPU by NVML, from a substitute library; and a GPU that torch cannot use."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest
import torch

from opatlas.errors import OpAtlasError
from opatlas.run.devices.device import DeviceSpec, device_states, open_device
from opatlas.run.devices.nvml import Nvml
from opatlas.run.instruments.instrument import MeasureSettings

UUID = "GPU-f89c029f-2a4a-0051-75af-431226ec9b55"
#: More than a Linux numbers: of a namespace that this process does not see.
_OF_THE_HOST = 1 << 23


class NVMLError(Exception):
    pass


def refuse(*arguments):
    raise NVMLError("Not Supported")


@pytest.fixture
def library(monkeypatch):
    answers = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByUUID": refuse,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: ["another", "handle"][index],
        "nvmlDeviceGetUUID": lambda handle: {"another": "GPU-0", "handle": UUID}[handle],
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: {
            "another": [],
            "handle": [
                SimpleNamespace(pid=os.getpid(), usedGpuMemory=1 << 30),
                SimpleNamespace(pid=os.getppid(), usedGpuMemory=3 << 30),
                SimpleNamespace(pid=_OF_THE_HOST, usedGpuMemory=None),
            ],
        }[handle],
        "nvmlSystemGetDriverVersion": lambda: "580.159.04",
        "nvmlSystemGetNVMLVersion": lambda: "13.580.159.04",
        "nvmlSystemGetCudaDriverVersion": lambda: 13000,
        "nvmlDeviceGetVbiosVersion": refuse,
        "nvmlDeviceGetMaxClockInfo": lambda handle, clock: {1: 1980, 2: 3201}[clock],
        "nvmlDeviceGetEnforcedPowerLimit": lambda handle: 700_000,
        "nvmlDeviceGetEccMode": lambda handle: [1, 1],
        "nvmlDeviceGetPersistenceMode": refuse,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 37,
        "nvmlDeviceGetPowerUsage": lambda handle: 85_173,
        "nvmlDeviceGetClockInfo": lambda handle, clock: {1: 1755, 2: 3201}[clock],
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=93),
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x4 | 0x1,
    }
    made = SimpleNamespace(NVMLError=NVMLError, NVML_CLOCK_SM=1, NVML_CLOCK_MEM=2, NVML_TEMPERATURE_GPU=0, **answers)
    monkeypatch.setitem(sys.modules, "pynvml", made)
    return made


def test_facts_leave_out_changing_and_unanswered_values(library):
    assert Nvml(UUID).facts() == {
        "driver": "580.159.04",
        "nvml": "13.580.159.04",
        "driver_cuda": "13.0",
        "max_sm_clock_mhz": 1980,
        "max_memory_clock_mhz": 3201,
        "power_limit_w": 700.0,
        "ecc": "on",
    }
    assert Nvml(UUID).state() == {
        "temperature_c": 37,
        "power_w": 85.173,
        "sm_clock_mhz": 1755,
        "memory_clock_mhz": 3201,
        "utilization_percent": 93,
        "throttled_by": "software power cap",
    }


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0x0, ()),
        (0x1 | 0x2, ()),  # idle, and clocks that somebody has set
        (0x8 | 0x40, ("hardware slowdown", "hardware thermal slowdown")),
        (0x20, ("software thermal slowdown",)),
        (0x80, ("hardware power brake",)),
    ],
)
def test_why_it_is_throttled(library, bits, reasons):
    library.nvmlDeviceGetCurrentClocksThrottleReasons = lambda handle: bits
    assert Nvml(UUID).throttles() == reasons


def test_a_missing_package_or_driver_is_in_the_facts(library, monkeypatch):
    library.nvmlInit = refuse
    without = Nvml(UUID)
    assert (without.facts(), without.state(), without.throttles()) == ({"nvml": "Not Supported"}, {}, ())
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "opatlas[cuda]" in Nvml(UUID).facts()["nvml"]


@pytest.mark.parametrize("name", ["1", UUID[:12], UUID])
def test_a_gpu_is_found_by_its_visible_name(library, name):
    assert Nvml(name).state()["temperature_c"] == 37
    assert len(Nvml(name).processes()) == 3


def test_processes_of_others_and_throttling_disturb_a_gpu(library):
    gpu = DeviceSpec("cuda", pinned=("CUDA_VISIBLE_DEVICES", "1"))
    devices = [DeviceSpec("cpu"), DeviceSpec("cuda", pinned=("CUDA_VISIBLE_DEVICES", "GPU-0")), gpu]
    quiet, state = device_states(devices, {os.getpid()}, opened=False)
    assert [(other.pid, other.memory_bytes) for other in state.others] == [
        (os.getppid(), 3 << 30),
        (_OF_THE_HOST, None),
    ]
    others, throttled = state.disturbances()
    assert "2 other processes" in others
    assert "3.0 GiB" in others
    assert "software power cap" in throttled
    assert quiet.others == ()
    # A session that has opened the GPU cannot distinguish its own process from one that it does not see.
    (later,) = device_states([gpu], {os.getpid()}, opened=True)
    assert [other.pid for other in later.others] == [os.getppid()]


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch was built for CUDA")
def test_a_torch_without_cuda_is_an_error_with_a_remedy():
    with pytest.raises(OpAtlasError, match=r"--device cpu"):
        open_device(DeviceSpec("cuda"), MeasureSettings())
