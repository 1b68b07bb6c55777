"""Replays of kernels that move data: copies, layouts, concatenations."""

from __future__ import annotations

import math

from opatlas.row.columns import INPUT_DTYPES, INPUT_SHAPES, OUTPUT_DTYPES, OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.inputs import images, shape_rules
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl


@replays("TensorMove", "TensorMoveAiCore", npu="torch.Tensor.copy_")
def test_tensor_move(row, replay):
    source = row.only_input()
    row.sizes("*all -> *all")
    same = row.output_dtype() == row.input_dtype(0)
    row.expect(same, OUTPUT_DTYPES, "the output must have the dtype of slot 0", "correct one of the dtypes")
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
    fits = len(sizes) == x.dim() and not any(size > whole for size, whole in zip(sizes, x.shape, strict=True))
    row.expect(fits, OUTPUT_SHAPES, f"the output is not a block of the input {tuple(x.shape)}")
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
    fits = len(sizes) == x.dim() and not any(size > whole for size, whole in zip(sizes, x.shape, strict=True))
    row.expect(fits, OUTPUT_SHAPES, f"the output is not a part of the input {tuple(x.shape)}")
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
    fits = len(result) == x.dim() > 0 and len(different) <= 1 and x.shape[axis]
    row.expect(fits, OUTPUT_SHAPES, f"the output differs from the input {tuple(x.shape)} in more than one axis")
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


@replays("SplitVD", "SplitV", "Split", npu="torch.split_with_sizes_copy")
def test_split(row, replay):
    """Reads the slots x, perhaps sizes of the parts, axis; of Split: axis, x. SplitVD, of graphs, has x alone."""
    row.expect_inputs({"SplitVD": 1, "Split": 2}.get(row.kernel_type, 3))
    x, parts = row.tensor(int(row.kernel_type == "Split")), [slot.shape for slot in row.output_slots]
    axis = shape_rules.concatenation(parts, tuple(x.shape))
    row.expect(
        axis is not None, OUTPUT_SHAPES, f"the outputs are not parts of the input {tuple(x.shape)} along an axis"
    )
    expected = formulas.split_into(len(parts))
    replay(impl.split_with_sizes_copy, x, [part[axis] for part in parts], axis, expected=expected)


@replays("ConcatD", "ConcatV2D", npu="torch.cat")
def test_concat(row, replay):
    """Replays ConcatV2D, of graphs, by a call that launches ConcatD."""
    parts = row.inputs()
    axis = shape_rules.concatenation([tuple(part.shape) for part in parts], row.output_shape()) if parts else None
    row.expect(axis is not None, INPUT_SHAPES, f"no concatenation along an axis has the shape {row.output_shape()}")
    replay(impl.cat, parts, axis, expected=formulas.concatenate)


@replays("BroadcastTo", "BroadcastToAiCore", npu="opatlas.bench.implementations.torch.broadcast_to")
def test_broadcast_to(row, replay):
    row.expect_inputs(1, 2)
    x, shape = row.tensor(0), row.output_shape()
    row.expect_list(1, len(shape), "the output's sizes")
    fits = shape_rules.broadcast([x.shape, shape]) == shape
    row.expect(fits, OUTPUT_SHAPES, f"the input {tuple(x.shape)} does not broadcast")
    replay(impl.broadcast_to, x, list(shape), expected=formulas.broadcast_to)


@replays("Tile", "TileAiCore", npu="torch.tile")
def test_tile(row, replay):
    row.expect_inputs(1, 2)
    x = row.tensor(0)
    row.expect_list(1, len(row.output_shape()), "the repetitions")
    repeats = shape_rules.repetition(tuple(x.shape), row.output_shape())
    row.expect(repeats is not None, OUTPUT_SHAPES, f"the axes are not multiples of the input's {tuple(x.shape)}")
    replay(impl.tile, x, repeats, expected=formulas.tile)


@replays("PadV3", "PadV3AiCore", "Pad", npu="torch.nn.functional.pad")
def test_pad(row, replay):
    """Assumes padding after the data, as for aligned rows; a capture does not record the position of the padding.

    Pad, of graphs, pads with 0 only; the call launches PadV3.
    """
    row.expect_inputs(1, 2, 3)
    x, padded = row.tensor(0), row.output_shape()
    if not row.has(1) or row.shape(1) != (x.dim(), 2):
        row.expect_list(1, 2 * x.dim(), "the padding before and after each axis")
    fits = len(padded) == x.dim() and not any(size < inner for size, inner in zip(padded, x.shape, strict=True))
    row.expect(fits, OUTPUT_SHAPES, f"the output does not contain the input {tuple(x.shape)}")
    padding = [
        amount for size, inner in zip(reversed(padded), reversed(x.shape), strict=True) for amount in (0, size - inner)
    ]
    replay(impl.pad, x, padding, expected=formulas.pad)


#: Bytes in the last axis of a blocked layout.
_BLOCK_BYTES = 32
#: Numbers in a line that AsStrided copies at a time.
_WHOLE_BLOCKS = 64


@replays("TransData", npu="torch_npu.npu_format_cast")
def test_trans_data(row, replay):
    """Converts a plain layout (NCHW, ND) to a blocked one, or back, into a tensor like the second argument.

    On an NPU both tensors have the shape of the plain slot. On other devices a blocked tensor has its stored shape.
    """
    row.expect_inputs(1)
    source, result = images.input_slot(row, 0).slot, images.output_slot(row, like=0).slot
    packs = _blocked(source, result) == result.shape
    row.expect(
        packs or _blocked(result, source) == source.shape,
        OUTPUT_SHAPES,
        f"{source.shape} ({source.format or 'no format'}) and {result.shape} ({result.format or 'no format'}) "
        "are not the plain and a blocked layout of one tensor",
        "correct one of the shapes or formats",
    )
    plain, blocked = (source, result) if packs else (result, source)
    x = row.tensor(0, shape=plain.shape if row.on_npu else None)
    if row.on_npu and blocked.shape[-1] * x.element_size() != _BLOCK_BYTES:
        raise Unsupported(f"npu_format_cast makes blocks of {_BLOCK_BYTES} bytes; only poolings make others")
    destination = x.new_zeros(plain.shape if row.on_npu else result.shape)
    replay(
        impl.format_cast,
        images.in_layout(row, source, x),
        images.in_layout(row, result, destination),
        output_slots=[None] if row.on_npu else [0],
        expected=formulas.format_cast,
    )


def _blocked(plain, blocked):
    """Returns the shape of a plain slot in the layout of a blocked one; None if that layout does not fit."""
    *batch, m, k = plain.shape if len(plain.shape) > 1 else (0, 0)
    ranks = (len(plain.shape), len(blocked.shape))
    format_of_ranks = {(4, 5): "NC1HWC0", (4, 4): "FRACTAL_Z"}.get(ranks, "FRACTAL_NZ")
    block = blocked.shape[-1] if blocked.shape else 0
    if not block or images.layout(plain) in images.BLOCKED:
        return None
    match images.layout(blocked) or format_of_ranks, plain.shape:
        case "NC1HWC0", (n, c, h, w):
            return n, images.block_count(c, block), h, w, block
        case "FRACTAL_Z", (o, c, h, w):
            return images.block_count(c, block) * h * w, images.block_count(o, 16), 16, block
        case "FRACTAL_NZ", (_, _, *_):
            return *batch, images.block_count(k, block), images.block_count(m, 16), 16, block
    return None


@replays("AsStrided", "AsStridedAiCore", npu="opatlas.bench.implementations.torch.strided_copy")
def test_as_strided(row, replay):
    """Reads the slots a storage; sizes, strides and offset of the view, whose values a capture does not record.

    The view is assumed to be cut along its last axis and transposed in its first two axes. A contiguous view needs no
    copy, and a view that is only cut or only transposed launches another kernel. On an NPU the contiguous copy of a
    view that is both launches AsStrided, if lines are whole blocks (ops-math, contiguous.cpp).
    """
    row.expect_inputs(4)
    sizes, count = row.output_shape(), row.tensor(0).numel()
    for slot, meaning in ((1, "the sizes"), (2, "the strides")):
        row.expect_list(slot, len(sizes), meaning)
    if row.shape(3):
        row.expect_list(3, 1, "the offset")
    viewed = math.prod(sizes)
    fits = viewed and not count % viewed and len(sizes) >= 2
    problem = f"the output is neither a part of the last axis of a tensor of {count} numbers nor its transposition"
    row.expect(fits, OUTPUT_SHAPES, problem)
    transposed = count == viewed or (len(sizes) > 2 and min(sizes[:2]) > 1)
    if row.on_npu and (count == viewed or not transposed or sizes[-1] % _WHOLE_BLOCKS):
        raise Unsupported(f"no known call launches {row.kernel_type} for a view of these sizes")
    stored = [*sizes[:-1], count // viewed * sizes[-1]]
    if transposed:
        stored[:2] = stored[1::-1]
    strides = [math.prod(stored[axis + 1 :]) for axis in range(len(stored))]
    if transposed:
        strides[:2] = strides[1::-1]
    row.assume(f"strides {strides}, offset 0")
    replay(impl.strided_copy, row.tensor(0), list(sizes), strides, 0, expected=formulas.strided_copy)


@replays("Tril", npu="torch.tril")
def test_tril(row, replay):
    replay(impl.tril, _matrix(row), 0, expected=formulas.lower_triangle)


@replays("Triu", npu="torch.triu")
def test_triu(row, replay):
    replay(impl.triu, _matrix(row), 0, expected=formulas.upper_triangle)


def _matrix(row):
    """Returns the matrices whose triangle is kept. A capture does not record the diagonal: the main one is assumed."""
    row.expect_inputs(1)
    row.expect(len(row.shape(0)) >= 2, INPUT_SHAPES, "slot 0 must have two axes or more")
    row.assume("the main diagonal")
    return row.tensor(0)


@replays("NonZero", "NonzeroAiCore", npu="torch.nonzero")
def test_nonzero(row, replay):
    """Assumes as many elements other than 0 as the output has room for, spread evenly.

    Profilers write its shape as (count, axes), (axes, count) or (count,).
    """
    row.expect_inputs(1)
    x = row.tensor(0)
    listed = math.prod(row.output_shape())
    fits = x.dim() and not listed % x.dim() and listed // x.dim() <= x.numel()
    row.expect(fits, OUTPUT_SHAPES, f"the output must hold {x.dim()} coordinates for each of up to {x.numel()} numbers")
    integers = not row.output_dtype().is_floating_point and row.output_slots[0].dtype != "BOOL"
    row.expect(integers, OUTPUT_DTYPES, "the output holds coordinates, which are integers")
    count = listed // x.dim()
    row.assume(f"{count} numbers are not 0, spread evenly")
    x = x.new_zeros(x.shape)
    x.view(-1)[[i * x.numel() // count for i in range(count)]] = 1
    replay(impl.nonzero, x, output_slots=[None], expected=formulas.nonzero)
