"""Which numbers elementwise replays call their kernels with, where the number decides which kernel runs."""

from __future__ import annotations

import pytest
import torch
from captures import cells
from opatlas.bench.test_elementwise import test_muls as replay_muls

from opatlas.row.errors import Unsupported
from opatlas.run.inputs.replay_row import ReplayRow


def arguments(dtype: str, device: str, shapes: str = "2,3") -> tuple[torch.Tensor, object]:
    """The arguments of a row of Muls."""
    seen: list[tuple[torch.Tensor, object]] = []
    row = ReplayRow("Muls", cells(shapes, "2,3", dtype), torch.device(device))
    replay_muls(row, lambda impl, *values, expected: seen.append(values))
    (values,) = seen
    return values


@pytest.mark.parametrize("dtype", ["DT_BF16", "FLOAT16"])
def test_muls_multiplies_by_a_float_since_cann_launches_mul_for_whole_numbers(dtype: str) -> None:
    """aclnnMuls takes the kernel Muls for BF16 and a scalar of type double: a Python float."""
    tensor, number = arguments(dtype, "meta")
    assert tensor.shape == (2, 3)
    assert type(number) is float


def test_a_scalar_in_the_row_changes_nothing() -> None:
    assert type(arguments("DT_BF16", "meta", "2,3;")[1]) is float


def test_muls_of_dtypes_without_a_launch_on_an_npu_has_a_note() -> None:
    with pytest.raises(Unsupported, match=r"\bMul\b.*\bMuls\b.* FLOAT"):
        arguments("FLOAT", "meta")
    assert arguments("FLOAT", "cpu")[0].dtype == torch.float32
