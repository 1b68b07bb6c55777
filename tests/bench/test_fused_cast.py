"""Kernels of graph mode into which a Cast is fused: another output dtype than the kernel alone would have."""

from __future__ import annotations

import pytest
from opatlas.bench.implementations import torch as impl
from replaying import assert_refused, replay_row

from opatlas.row.columns import OUTPUT_DTYPES
from opatlas.row.status import Status


@pytest.mark.parametrize(
    ("kernel_type", "row"),
    [
        ("Mul", "3,1,1,128; | FLOAT;FLOAT | NCHW;NCHW -> 3,1,1,128 | FLOAT16 | NCHW"),
        ("Add", "8,64;64 | BF16;BF16 -> 8,64 | FLOAT"),
        ("Add", "4;4 | FLOAT;FLOAT -> 4 | INT32"),
        ("Equal", "4;4 | FLOAT;FLOAT -> 4 | FLOAT16"),
        ("Conv2D", "1,2,5,5;3,2,3,3 | FLOAT;FLOAT | NCHW;NCHW -> 1,3,3,3 | FLOAT16 | NCHW"),
    ],
)
def test_a_cast_is_not_replayed_and_not_a_wrong_cell(kernel_type: str, row: str) -> None:
    outcome = replay_row(kernel_type, row)
    assert outcome.status is Status.UNSUPPORTED
    assert "Cast" in outcome.reason


def test_a_call_that_returns_another_dtype_than_all_tensors_have_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impl, "mul", lambda x, y: (x * y).half())
    assert_refused("Mul", "3,4;4 | FLOAT;FLOAT -> 3,4 | FLOAT", OUTPUT_DTYPES)
