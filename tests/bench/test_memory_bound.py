"""A row on the CPU that needs more memory than there is fails, and the system kills nothing."""

from __future__ import annotations

import resource
import sys

import pytest
import torch

from bench.devices.cpu import CpuDevice, bounded_memory
from bench.job import DeviceSpec, Job, MeasureSettings
from bench.runner import Runner
from database.schema import Status

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux alone bounds the memory of a process so")

#: The kernel takes far more than its tensors: what a row says does not tell.
REPLAY = """
from bench import expected
from bench.registry import replays


def greedy(x, y):
    return x.new_zeros(1 << 28).sum() + x + y


@replays("Greedy", npu="torch.add")
def test_greedy(row, replay):
    replay(greedy, *row.inputs(), expected=expected.add)
"""
CELLS = {
    "Input Shapes": "262144;262144",
    "Input Data Types": "FLOAT;FLOAT",
    "Input Formats": "ND;ND",
    "Output Shapes": "262144",
    "Output Data Types": "FLOAT",
    "Output Formats": "ND",
}


def test_an_allocation_beyond_the_bound_fails_and_the_next_one_does_not() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with bounded_memory(256 << 20):
        assert torch.ones(16 << 20).sum() > 0
        with pytest.raises(RuntimeError, match="can't allocate memory"):
            torch.ones(256 << 20)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    torch.empty(256 << 20)


@pytest.mark.parametrize(("available", "status"), [(1 << 28, Status.OOM), (1 << 32, Status.MEASURED)])
def test_a_kernel_that_takes_more_than_there_is_costs_its_row(tmp_path, monkeypatch, available, status) -> None:
    (tmp_path / "greedy_replay.py").write_text(REPLAY)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(CpuDevice, "available_bytes", lambda self: available)
    runner = Runner(DeviceSpec("cpu"), MeasureSettings(repeat_count=1, threads=1, cache="warm"))
    outcome = runner.run(Job("greedy_replay", "", "test_greedy", "Greedy", CELLS, timeout_s=60))
    assert outcome.status is status, outcome.reason
