"""Replays of kernels that choose elements: by index, by mask, by order."""

from __future__ import annotations

import math

from opatlas.row.columns import INPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.inputs import shape_rules
from opatlas.run.inputs.operands import gathered_axis, indexed_axes, is_grid_index
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl


@replays("GatherV2", "GatherV2AiCore", npu="torch.embedding")
def test_gather(row, replay):
    """Gathers rows of a table, like an embedding; or one position along an axis, by a scalar index."""
    row.expect_inputs(2, 3)
    table, axis = row.shape(0), gathered_axis(row)
    is_embedding = axis == 0 and len(table) == 2
    if not row.shape(1) and not is_embedding and not row.on_npu:
        position = row.indices(1, table[axis])
        replay(impl.index, row.tensor(0), [*[None] * axis, position], expected=formulas.index)
        return
    if not is_embedding:
        raise Unsupported(f"{row.kernel_type} is replayed for rows of a table with two axes only")
    replay(impl.embedding, row.tensor(0), row.indices(1, table[0]), expected=formulas.gather_rows)


@replays("Index", "IndexAiCore", npu="torch.ops.aten.index.Tensor")
def test_index(row, replay):
    """Reads the slots x, list of axes up to the last indexed axis, steps of the axes, and index tensors."""
    if is_grid_index(row):
        replay(impl.index, row.tensor(0), [row.indices(2, row.shape(0)[0])], expected=formulas.index)
        return
    axes, x = indexed_axes(row, list_slot=1, first_slot=3), row.tensor(0)
    if row.shape(2) != (1,):
        row.expect_list(2, x.dim(), "the steps of the axes of slot 0")
    indices = [row.indices(slot, x.shape[axis]) for slot, axis in enumerate(axes, start=3)]
    common = shape_rules.broadcast([index.shape for index in indices])
    row.expect(common is not None, INPUT_SHAPES, "the index tensors (slot 3 on) do not broadcast")
    replay(impl.index, x, [*[None] * axes.start, *indices], expected=formulas.index)


@replays("MaskedFill", "MaskedFillAiCore", npu="torch.Tensor.masked_fill_")
def test_masked_fill(row, replay):
    row.expect_inputs(2, 3)
    row.expect_dtype(1, "BOOL")
    row.expect_broadcast()
    row.expect_output_shape_like(0)
    if len(row.input_slots) == 3:
        row.expect_scalar(2)
    x, mask, value = row.tensor(0), row.tensor(1), row.tensor_or_number(2)
    replay(impl.masked_fill_, x, mask, value, mutates=[0], expected=formulas.masked_fill)


@replays("IndexFill", npu="torch.index_fill")
def test_index_fill(row, replay):
    """Reads the slots x, indices along an axis, the number to fill in. A capture does not record the axis."""
    row.expect_inputs(3)
    row.expect_output_shape_like(0)
    x, count = row.tensor(0), math.prod(row.shape(1))
    row.expect(x.dim() and len(row.shape(1)) == 1, INPUT_SHAPES, "slot 1 must list indices along an axis of slot 0")
    row.expect(row.shape(2) in ((), (1,)), INPUT_SHAPES, "slot 2 (the value) must be one number")
    row.assume("indices run along axis 0")
    indices = row.indices(1, x.shape[0], distinct=count <= x.shape[0])
    replay(impl.index_fill, x, 0, indices, 2, expected=formulas.index_fill)


@replays("Sort", "SortAiCore", npu="torch.sort")
def test_sort(row, replay):
    """Assumes a descending order, as samplers sort logits; a capture does not record the direction."""
    row.assume("descending")
    replay(impl.sort, row.only_input(), dim=-1, descending=True, expected=formulas.sort)


@replays("ArgMaxV2", "ArgMaxV2AiCore", npu="torch.argmax")
def test_argmax(row, replay):
    row.expect_inputs(1, 2)
    x = row.tensor(0)
    row.expect(x.shape[-1:].numel(), INPUT_SHAPES, "slot 0 has no elements, and so no largest one")
    replay(impl.argmax, x, -1, expected=formulas.argmax)


@replays("ArgMaxWithValue", npu="torch.max")
def test_largest(row, replay):
    """Checks the outputs indices, values. The call returns the values first."""
    row.expect_inputs(1)
    x, result = row.tensor(0), row.output_shape()
    row.expect(x.shape[-1:].numel(), INPUT_SHAPES, "slot 0 has no elements, and so no largest one")
    along_last = result in (tuple(x.shape[:-1]), (*x.shape[:-1], 1))
    if not along_last and shape_rules.reduction(tuple(x.shape), result, 1) is not None:
        raise Unsupported(f"{row.kernel_type} is replayed along the last axis only")
    replay(impl.max, x, -1, len(result) == x.dim(), output_slots=[1, 0], expected=formulas.largest)
