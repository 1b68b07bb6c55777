"""Replays of kernels that move data."""

from __future__ import annotations

from opatlas.row.columns import INPUT_DTYPES, INPUT_SHAPES, OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.inputs import shape_rules
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl


@replays("TensorMove", "TensorMoveAiCore", npu="torch.Tensor.copy_")
def test_tensor_move(row, replay):
    source = row.only_input()
    row.expect_output_like(0)
    replay(impl.copy_, row.destination(), source, overwrites=[0], expected=formulas.copy_into)


@replays("Slice", "SliceAiCore", npu="opatlas.bench.implementations.torch.slice_copy")
def test_slice(row, replay):
    """Assumes a block from the first element on, because a capture does not record the offsets.

    Shape grids of msmodeling have two more slots, axes and steps.
    """
    row.expect_inputs(1, 3, 5)
    x, sizes = row.tensor(0), row.output_shape()
    for slot, meaning in enumerate(("the offsets", "the sizes", "the axes", "the steps"), start=1):
        row.expect_list(slot, x.dim(), meaning)
    row.expect(
        len(sizes) == x.dim() and not any(size > whole for size, whole in zip(sizes, x.shape, strict=True)),
        OUTPUT_SHAPES,
        f"the output is not a block of the input {tuple(x.shape)}",
    )
    if row.on_npu and x[tuple(map(slice, sizes))].is_contiguous():
        raise Unsupported(f"torch copies a contiguous block, and no call launches {row.kernel_type} for it")
    replay(impl.slice_copy, x, [0] * x.dim(), list(sizes), expected=formulas.slice_copy)


@replays("StridedSlice", "StridedSliceAiCore", "StridedSliceD", npu="torch_npu.npu_indexing")
def test_strided_slice(row, replay):
    """Reads the slots x; lists of begins, ends and steps, whose values a capture does not record.

    StridedSliceD, of older toolkits, has fixed lists; the call launches StridedSlice.
    """
    row.expect_inputs(1, 4)
    x, sizes = row.tensor(0), row.output_shape()
    for slot, meaning in ((1, "where axes begin"), (2, "where axes end"), (3, "the steps")):
        row.expect_list(slot, x.dim(), meaning)
    if len(sizes) < x.dim():
        raise Unsupported(f"{row.kernel_type} is replayed with as many axes in the output as in the input")
    row.expect(
        len(sizes) == x.dim() and not any(size > whole for size, whole in zip(sizes, x.shape, strict=True)),
        OUTPUT_SHAPES,
        f"the output is not a part of the input {tuple(x.shape)}",
    )
    steps = [whole // size if size else 1 for size, whole in zip(sizes, x.shape, strict=True)]
    row.assume(f"steps {steps} from the first element on")
    ends = [size * step for size, step in zip(sizes, steps, strict=True)]
    replay(impl.strided_slice, x, [0] * x.dim(), ends, steps, expected=formulas.strided_slice)


@replays("Pack", "PackAiCore", npu="torch.stack")
def test_pack(row, replay):
    parts, result = row.inputs(), row.output_shape()
    row.expect(len({part.dtype for part in parts}) <= 1, INPUT_DTYPES, "the inputs must have one dtype")
    axes = [
        axis
        for axis in range(len(result))
        if parts and all((*part.shape[:axis], len(parts), *part.shape[axis:]) == result for part in parts)
    ]
    row.expect(axes, OUTPUT_SHAPES, f"no stack of the {len(parts)} inputs along a new axis has this shape")
    if len(axes) > 1:
        row.assume(f"axis {axes[0]} is the new one")
    replay(impl.stack, parts, axes[0], expected=formulas.stack)


@replays("RepeatInterleave", npu="torch.repeat_interleave")
def test_repeat_interleave(row, replay):
    """Reads the slots x and repetitions of the lines of an axis, which are assumed as equal as possible."""
    row.expect_inputs(2)
    row.index_dtype(1)
    x, result = row.tensor(0), row.output_shape()
    different = [axis for axis, (own, size) in enumerate(zip(x.shape, result, strict=False)) if own != size]
    axis = different[0] if different else 0
    row.expect(
        len(result) == x.dim() > 0 and len(different) <= 1 and x.shape[axis],
        OUTPUT_SHAPES,
        f"the output differs from the input {tuple(x.shape)} in more than one axis",
    )
    lines, total = x.shape[axis], result[axis]
    row.expect_shape(1, (lines,), *([(), (1,)] if total % lines == 0 else []), meaning="repetitions")
    if row.shape(1) == (lines,):
        row.assume(f"{total} lines are dealt out evenly to {lines}")
        repeats = [total // lines + (line < total % lines) for line in range(lines)]
    else:
        repeats = [total // lines]
    tensor = row.numbers(1, repeats).reshape(row.shape(1))
    replay(impl.repeat_interleave, x, tensor, axis, output_size=total, expected=formulas.repeat_interleave)


@replays("Transpose", "TransposeAiCore", npu="opatlas.bench.implementations.torch.transpose_copy")
def test_transpose(row, replay):
    row.expect_inputs(1, 2)
    x = row.tensor(0)
    row.expect_list(1, x.dim(), "the axes")
    permutation = shape_rules.permutation(tuple(x.shape), row.output_shape())
    if permutation is None:
        raise row.refuse(OUTPUT_SHAPES, f"the output must have the axes {tuple(x.shape)} in any order", "correct one")
    if not shape_rules.permutation_is_unique(row.shape(0)):
        row.assume(f"axes {list(permutation)}, of several orders that fit the shapes")
    replay(impl.transpose_copy, x, list(permutation), expected=formulas.transpose_copy)


@replays("ConcatD", npu="torch.cat")
def test_concat(row, replay):
    parts = row.inputs()
    axis = shape_rules.concatenation([tuple(part.shape) for part in parts], row.output_shape()) if parts else None
    row.expect(axis is not None, INPUT_SHAPES, f"no concatenation along an axis has the shape {row.output_shape()}")
    replay(impl.cat, parts, axis, expected=formulas.concatenate)


@replays("BroadcastTo", "BroadcastToAiCore", npu="opatlas.bench.implementations.torch.broadcast_to")
def test_broadcast_to(row, replay):
    row.expect_inputs(1, 2)
    x, shape = row.tensor(0), row.output_shape()
    row.expect_list(1, len(shape), "the output's sizes")
    row.expect(
        shape_rules.broadcast([x.shape, shape]) == shape,
        OUTPUT_SHAPES,
        f"the input {tuple(x.shape)} does not broadcast",
    )
    replay(impl.broadcast_to, x, list(shape), expected=formulas.broadcast_to)


@replays("Tile", "TileAiCore", npu="torch.tile")
def test_tile(row, replay):
    row.expect_inputs(1, 2)
    x = row.tensor(0)
    row.expect_list(1, len(row.output_shape()), "the repetitions")
    repeats = shape_rules.repetition(tuple(x.shape), row.output_shape())
    row.expect(repeats is not None, OUTPUT_SHAPES, f"the axes are not multiples of the input's {tuple(x.shape)}")
    replay(impl.tile, x, repeats, expected=formulas.tile)


@replays("PadV3", "PadV3AiCore", npu="torch.nn.functional.pad")
def test_pad(row, replay):
    """Assumes padding after the data, as for aligned rows; a capture does not record the position of the padding."""
    row.expect_inputs(1, 2, 3)
    x, padded = row.tensor(0), row.output_shape()
    row.expect_list(1, 2 * x.dim(), "the padding before and after each axis")
    row.expect(
        len(padded) == x.dim() and not any(size < inner for size, inner in zip(padded, x.shape, strict=True)),
        OUTPUT_SHAPES,
        f"the output does not contain the input {tuple(x.shape)}",
    )
    padding = [
        amount for size, inner in zip(reversed(padded), reversed(x.shape), strict=True) for amount in (0, size - inner)
    ]
    replay(impl.pad, x, padding, expected=formulas.pad)
