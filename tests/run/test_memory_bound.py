"""A row on the CPU that needs more memory than there is fails, and the system kills nothing."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from opatlas.row.errors import OutOfMemory
from opatlas.row.status import Status
from opatlas.run.devices.cpu import CpuDevice
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job
from opatlas.run.registry import ReplaySpec
from opatlas.run.replay import Replay
from opatlas.run.runner import Runner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone bounds the memory of a process so")

#: The kernel takes far more than its tensors, which the cells of a row do not show.
REPLAY = """
from opatlas.bench import formulas
from opatlas.run.registry import replays


def greedy(x, y):
    return x.new_zeros(1 << 28).sum() + x + y


@replays("Greedy", npu="torch.add")
def test_greedy(row, replay):
    replay(greedy, *row.inputs(), expected=formulas.add)
"""
CELLS = {
    "Input Shapes": "262144;262144",
    "Input Data Types": "FLOAT;FLOAT",
    "Input Formats": "ND;ND",
    "Output Shapes": "262144",
    "Output Data Types": "FLOAT",
    "Output Formats": "ND",
}


@pytest.mark.parametrize(
    ("kind", "host_bytes", "fits"), [("mps", 1 << 20, False), ("mps", 1 << 40, True), ("cuda", 1 << 20, True)]
)
def test_a_row_that_is_checked_on_the_host_must_fit_there_too(monkeypatch, kind, host_bytes, fits) -> None:
    """A device without float64, such as an NPU; torch without torch_npu knows no device of that name."""
    device = SimpleNamespace(torch_device=torch.device(kind), available_bytes=lambda: 1 << 40)
    monkeypatch.setattr("opatlas.run.replay.host_available_bytes", lambda: host_bytes)
    cells = {**CELLS, "Input Shapes": "8192,8192;8192,8192", "Output Shapes": "8192,8192"}
    row = ReplayRow("Add", cells, torch.device("cpu"))
    replay = Replay(row, ReplaySpec(("Add",), npu="torch.add"), device, None, MeasureSettings())
    with nullcontext() if fits else pytest.raises(OutOfMemory, match="host"):
        replay.expect_memory()


@pytest.mark.parametrize(("available", "status"), [(1 << 28, Status.OOM), (1 << 32, Status.MEASURED)])
def test_a_kernel_that_needs_too_much_memory_costs_its_row(tmp_path, monkeypatch, available, status) -> None:
    (tmp_path / "greedy_replay.py").write_text(REPLAY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(CpuDevice, "available_bytes", lambda self: available)
    runner = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=1, threads=1, cache="warm"))
    outcome = runner.run(Job("greedy_replay", "", "test_greedy", "Greedy", CELLS, timeout_s=60))
    assert outcome.status is status, outcome.reason
