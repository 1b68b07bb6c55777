"""Replays of kernels that create values."""

from __future__ import annotations

from opatlas.row.columns import OUTPUT_SHAPES
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl


@replays("Fill", "FillAiCore", npu="torch.Tensor.fill_")
def test_fill(row, replay):
    """Reads the slots sizes of the output, value."""
    row.expect_inputs(2)
    row.expect_list(0, len(row.output_shape()), "the output's sizes")
    replay(impl.fill_, row.destination(), row.number(1, 0.5, 2.0), overwrites=[0], expected=formulas.fill)


@replays("ZerosLike", "ZerosLikeAiCore", npu="torch.zeros_like")
def test_zeros_like(row, replay):
    replay(impl.zeros_like, row.only_input(), expected=formulas.zeros_like)


@replays("OnesLike", "OnesLikeAiCore", npu="torch.ones_like")
def test_ones_like(row, replay):
    replay(impl.ones_like, row.only_input(), expected=formulas.ones_like)


@replays("Range", "ArangeAiCore", npu="torch.arange")
def test_range(row, replay):
    """Counts from 1 in steps of 1; the output says how far."""
    row.expect_inputs(3)
    for slot in range(3):
        row.expect_scalar(slot)
    row.expect(len(row.output_shape()) == 1, OUTPUT_SHAPES, "the output must have one axis")
    replay(
        impl.arange,
        1,
        1 + row.output_shape()[0],
        1,
        dtype=row.output_dtype(),
        device=row.device,
        expected=formulas.arange,
    )
