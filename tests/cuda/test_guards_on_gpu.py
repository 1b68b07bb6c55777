"""The planted kernels on a GPU: each is caught by its calls, and an honest kernel of Triton is not."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch
from planted_trials import PLANTED, PlantedKernel, Tried, each_of, judge, planted_kernels

from opatlas.candidates.judgement import ErrorClass
from opatlas.candidates.rejection import CandidateRejected
from opatlas.instruments.instrument import Instrument, InstrumentMissing, MeasureSettings, open_instrument

#: They leave functions replaced, which later rows of this process would use.
_PATCHES = (9, 10, 32)
KERNELS = [each for each in planted_kernels() if each.device != "cpu" and each.number not in _PATCHES]
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


@pytest.fixture(scope="module")
def instrument(gpu) -> Instrument:
    torch.cuda.set_device(0)
    try:
        return open_instrument("cuda", MeasureSettings(instrument="cupti"))
    except InstrumentMissing as error:
        pytest.skip(str(error))


def _judge(kernel: PlantedKernel, tmp_path: Path, instrument: Instrument) -> Tried:
    if "triton" in kernel.path.read_text():
        pytest.importorskip("triton")
    task, path = (Path(shutil.copy(each, tmp_path)) for each in (kernel.task, kernel.path))
    return judge(task, path, row=kernel.row, device=torch.device("cuda", 0), instrument=instrument)


@pytest.mark.parametrize("kernel", each_of([each for each in KERNELS if each.error_class is not ErrorClass.PASS]))
def test_a_planted_kernel_is_caught_by_its_calls(kernel: PlantedKernel, tmp_path: Path, instrument: Instrument) -> None:
    with pytest.raises(CandidateRejected) as caught:
        _judge(kernel, tmp_path, instrument)
    assert caught.value.error_class is kernel.error_class
    assert kernel.sub_class in ("", caught.value.sub_class)


@pytest.mark.parametrize("kernel", each_of([each for each in KERNELS if each.error_class is ErrorClass.PASS]))
def test_a_planted_kernel_gains_nothing_and_is_told(
    kernel: PlantedKernel, tmp_path: Path, instrument: Instrument
) -> None:
    found = _judge(kernel, tmp_path, instrument)
    assert kernel.notes in " ".join(found.notes)
    if kernel.number == 6:
        # Kernels of another stream count.
        assert found.samples.device_kernels == 20


def test_an_honest_kernel_passes(tmp_path: Path, instrument: Instrument) -> None:
    pytest.importorskip("triton")
    path = tmp_path / "honest.py"
    path.write_text(_HONEST)
    for seed in range(3):
        found = judge(
            PLANTED / "tasks" / "softmax.py", path, seed=seed, device=torch.device("cuda", 0), instrument=instrument
        )
        assert found.notes == ()
        assert found.samples.kernel_names == ("row_softmax",)
    assert "triton" in sys.modules
