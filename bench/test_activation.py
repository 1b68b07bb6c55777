"""Replays of activation kernels."""

from __future__ import annotations

from bench import expected, impl
from bench.registry import replays
from database.schema import INPUT_SHAPES


@replays("SoftmaxV2", "SoftmaxAiCore", npu="torch.softmax")
def test_softmax(row, replay):
    replay(impl.softmax, row.only_input(-4.0, 4.0), -1, expected=expected.softmax)


@replays("SwiGlu", npu="torch_npu.npu_swiglu")
def test_swiglu(row, replay):
    x = row.only_input(-4.0, 4.0)
    if not x.dim() or x.shape[-1] % 2:
        raise row.refuse(INPUT_SHAPES, "the last axis has no two halves", "correct the shape")
    replay(impl.swiglu, x, -1, expected=expected.swiglu)
