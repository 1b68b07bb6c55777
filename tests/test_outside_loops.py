"""The calls that are compared with timing loops of torch alone: both sides compute the same."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
import torch

from opatlas.row.columns import OUTPUT_SHAPES
from tests.benchmarks.outside_loops import CALLS, LOOPS, ComparedCall, opatlas_durations, table


def small(compared: ComparedCall) -> ComparedCall:
    return replace(compared, sizes={name: min(size, 16) for name, size in compared.sizes.items()})


def test_twenty_calls_are_compared() -> None:
    counts = Counter(compared.family for compared in CALLS)
    assert counts == {"products": 10, "attention": 4, "grouped products": 2, "others": 4}
    assert len({str(compared) for compared in CALLS}) == len(CALLS)


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


def test_ratios_are_of_opatlas_to_the_loop() -> None:
    calls = CALLS[:2]
    lines = list(table(calls, [10.0, 30.0], [dict.fromkeys(LOOPS, 20.0), dict.fromkeys(LOOPS, 20.0)]))
    assert [line for line in lines if line.startswith("| products")] == [
        "| products | 2 | 1.00 (0.50 to 1.50) | 1.00 (0.50 to 1.50) | 1.00 (0.50 to 1.50) |"
    ]
