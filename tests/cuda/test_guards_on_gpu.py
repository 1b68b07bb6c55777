"""The planted kernels on a GPU: each is caught by its calls, and an honest kernel of Triton is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from planted_trials import PLANTED, PlantedKernel, each_of, job_of_candidate, planted_kernels

from opatlas.outer.judging.failures import run_judged
from opatlas.outer.judging.judgement import ErrorClass, Judgement
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, RowOutcome
from opatlas.run.process.device_process import DeviceProcess

KERNELS = [each for each in planted_kernels() if each.device != "cpu"]
_HONEST = """
import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def row_softmax(x, y, n, block: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, block)
    values = tl.load(x + row * n + at, mask=at < n, other=-float("inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(y + row * n + at, values / tl.sum(values, axis=0), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        result = torch.empty_like(x)
        row_softmax[(x.shape[0],)](x, result, x.shape[1], triton.next_power_of_2(x.shape[1]))
        return result
"""


def _judged(gpu, job: Job) -> RowOutcome:
    """In a process of its own, as in a session."""
    process = DeviceProcess(gpu, MeasureSettings(repeat_count=40, instrument="cupti"))
    try:
        return run_judged(process.run, job)
    finally:
        process.close()


@pytest.mark.parametrize("kernel", each_of(KERNELS))
def test_a_planted_kernel_is_caught_by_its_calls(kernel: PlantedKernel, tmp_path: Path, gpu) -> None:
    if "triton" in kernel.path.read_text():
        pytest.importorskip("triton")
    outcome = _judged(gpu, kernel.job(tmp_path))
    kernel.expect(outcome)
    if kernel.number == 6:
        # Kernels of another stream count.
        assert outcome.measurement is not None
        assert outcome.measurement.device_kernels == 20


def test_an_honest_kernel_passes(tmp_path: Path, gpu) -> None:
    pytest.importorskip("triton")
    path = tmp_path / "honest.py"
    path.write_text(_HONEST)
    outcome = _judged(gpu, job_of_candidate(PLANTED / "tasks" / "softmax.py", path))
    assert Judgement.of(outcome) is not None, outcome.reason
    assert Judgement.of(outcome).error_class is ErrorClass.PASS, Judgement.of(outcome).text
    assert Judgement.of(outcome).kernel_share == 1
    assert Judgement.of(outcome).notes == ()
    assert outcome.measurement is not None
    assert outcome.measurement.execution.kernel_names == ("row_softmax",)
