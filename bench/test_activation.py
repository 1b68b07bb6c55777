"""Replays of activation kernels."""

from __future__ import annotations

from opatlas.row.columns import INPUT_SHAPES
from opatlas.run.inputs import shape_rules
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl


@replays("SoftmaxV2", "SoftmaxAiCore", npu="torch.softmax")
def test_softmax(row, replay):
    replay(impl.softmax, row.only_input(-4.0, 4.0), -1, expected=formulas.softmax)


@replays("SwiGlu", npu="torch_npu.npu_swiglu")
def test_swiglu(row, replay):
    x = row.only_input(-4.0, 4.0)
    row.expect(x.dim() and not x.shape[-1] % 2, INPUT_SHAPES, "the last axis must have an even size")
    replay(impl.swiglu, x, -1, expected=formulas.swiglu)


@replays("FastGelu", npu="torch_npu.npu_fast_gelu")
def test_fast_gelu(row, replay):
    replay(impl.fast_gelu, row.only_input(-4.0, 4.0), expected=formulas.fast_gelu)


@replays("Swish", npu="torch.nn.functional.silu")
def test_silu(row, replay):
    """Assumes a scale of 1, because a capture does not record the scale."""
    row.assume("a scale of 1, which aclnnSilu passes")
    replay(impl.silu, row.only_input(-4.0, 4.0), expected=formulas.silu)


@replays("ScaledMaskedSoftmax", "ScaledMaskedSoftmaxV2", npu="torch_npu.npu_scaled_masked_softmax")
def test_scaled_masked_softmax(row, replay):
    """Reads the slots x and a mask that broadcasts to x. A capture does not record the scale."""
    row.expect_inputs(2)
    row.expect_dtype(1, "BOOL")
    row.expect_output_shape_like(0)
    x, mask = row.matrices(0), row.matrices(1)
    row.expect(
        shape_rules.broadcast([x.shape, mask.shape]) == x.shape, INPUT_SHAPES, "slot 1 does not broadcast to slot 0"
    )
    # A result in FRACTAL_NZ is compared as matrices, whose shape is not that of the slot.
    slots = [None] if tuple(x.shape) != row.output_shape() else [0]
    replay(impl.scaled_masked_softmax, x, mask, 4.0, False, output_slots=slots, expected=formulas.scaled_masked_softmax)
