"""Replays of kernels that change layouts, or select elements by their position."""

from __future__ import annotations

import math

from opatlas.row.columns import INPUT_SHAPES, OUTPUT_DTYPES, OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.inputs import images
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl

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
        raise Unsupported(
            f"npu_format_cast makes blocks of {_BLOCK_BYTES} bytes; only poolings make blocks of "
            f"{blocked.shape[-1]} {blocked.dtype}"
        )
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
    row.expect(
        viewed and not count % viewed and len(sizes) >= 2,
        OUTPUT_SHAPES,
        f"the output is neither a part of the last axis of a tensor of {count} numbers nor its transposition",
    )
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
    row.expect(
        x.dim() and not listed % x.dim() and listed // x.dim() <= x.numel(),
        OUTPUT_SHAPES,
        f"the output must hold {x.dim()} coordinates for each of up to {x.numel()} numbers",
    )
    integers = not row.output_dtype().is_floating_point and row.output_slots[0].dtype != "BOOL"
    row.expect(integers, OUTPUT_DTYPES, "the output holds coordinates, which are integers")
    count = listed // x.dim()
    row.assume(f"{count} numbers are not 0, spread evenly")
    x = x.new_zeros(x.shape)
    x.view(-1)[[i * x.numel() // count for i in range(count)]] = 1
    replay(impl.nonzero, x, output_slots=[None], expected=formulas.nonzero)
