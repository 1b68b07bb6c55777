"""The calls that are compared with timing loops of torch alone: both sides compute the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from opatlas.row.columns import OUTPUT_SHAPES
from tests.benchmarks.outside_loops import CALLS, ComparedCall, opatlas_durations


def small(compared: ComparedCall) -> ComparedCall:
    return replace(compared, sizes={name: min(size, 16) for name, size in compared.sizes.items()})


@pytest.mark.parametrize("compared", CALLS, ids=str)
def test_torch_computes_the_call_of_the_row(compared: ComparedCall) -> None:
    if compared.kernel_type == "GroupedMatmul" and not hasattr(torch.nn.functional, "grouped_mm"):
        pytest.skip("this torch has no grouped product on a CPU")
    compared = small(compared)
    result = compared.make("cpu", **compared.sizes)()
    assert isinstance(result, torch.Tensor)
    shape = compared.cells()[OUTPUT_SHAPES].split(";")[0].split(",")
    assert result.numel() == torch.Size(map(int, shape)).numel()
    assert result.shape[-1] == int(shape[-1])


def test_opatlas_measures_the_rows() -> None:
    calls = [small(compared) for compared in {each.kernel_type: each for each in CALLS}.values()]
    found = list(opatlas_durations(calls, "cpu"))
    assert len(found) == len(calls) == 7
    assert min(found) > 0
