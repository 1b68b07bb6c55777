"""Replays of kernels that choose elements or write to chosen ones: by index, by mask, by order."""

from __future__ import annotations

import math
from math import prod

from opatlas.row.columns import INPUT_SHAPES, OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.inputs import shape_rules
from opatlas.run.inputs.shape_rules import gathered_axis, indexed_axes, is_grid_index
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
    row.sizes("*all -> *all")
    if len(row.input_slots) == 3:
        row.expect_scalar(2)
    value = row.tensor(2) if len(row.input_slots) == 3 else 2
    replay(impl.masked_fill_, row.tensor(0), row.tensor(1), value, mutates=[0], expected=formulas.masked_fill)


@replays("IndexFill", npu="torch.index_fill")
def test_index_fill(row, replay):
    """Reads the slots x, indices along an axis, the number to fill in. A capture does not record the axis."""
    row.expect_inputs(3)
    row.sizes("*all -> *all")
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


@replays("GatherV3", "GatherV3AiCore", "Gather", npu="torch.index_select")
def test_gather_rows(row, replay):
    """Reads the slots source, list of indices, in GatherV3 also the axis, whose value a capture does not have."""
    row.expect_inputs(2, 3)
    if len(row.shape(1)) != 1:
        raise Unsupported(f"{row.kernel_type} is replayed for a list of indices only")
    axis = gathered_axis(row)
    indices = row.indices(1, row.shape(0)[axis])
    replay(impl.index_select, row.tensor(0), axis, indices, expected=formulas.index_select)


@replays("GatherElements", "GatherElementsV2", npu="torch.gather")
def test_gather_elements(row, replay):
    row.expect_inputs(2)
    axis = _axis(row, row.shape(0), row.shape(1))
    indices = row.indices(1, row.shape(0)[axis])
    replay(impl.gather, row.tensor(0), axis, indices, expected=formulas.gather_elements)


@replays("ScatterElementsV2", npu="torch.Tensor.scatter_")
def test_scatter_elements(row, replay):
    """Reads the slots target, indices along an axis, updates: as many elements, or one number."""
    row.expect_inputs(3)
    target, indices = row.shape(0), row.shape(1)
    row.expect(row.shape(2) in ((), indices), INPUT_SHAPES, "slot 2 (updates) must have the shape of slot 1 (indices)")
    axis = _axis(row, target, indices)
    if indices[axis] > target[axis]:
        raise Unsupported(_AMBIGUOUS)
    replay(
        impl.scatter_,
        row.tensor(0),
        axis,
        row.indices(1, target[axis], along=axis),
        row.tensor(2) if row.shape(2) else row.number(2),
        mutates=[0],
        expected=formulas.scatter_elements,
    )


@replays("ScatterNdUpdate", "ScatterNdUpdateAiCore", npu="torch_npu.npu_scatter_nd_update_")
def test_scatter_nd_update(row, replay):
    """Reads the slots target, positions (..., k) along its first k axes, updates (..., other axes)."""
    row.expect_inputs(3)
    target, positions = row.shape(0), row.shape(1)
    axes = positions[-1] if positions else 0
    fits = 1 <= axes <= len(target) and row.shape(2) == positions[:-1] + target[axes:]
    problem = f"slot 1 must be (..., k), where k is 1 to {len(target)}, and slot 2 (..., the axes of slot 0 from k on)"
    row.expect(fits, INPUT_SHAPES, problem)
    coordinates = _distinct(row, [1] * axes, [positions[:-1]] * axes, target[:axes])
    replay(
        impl.scatter_nd_update,
        row.tensor(0),
        impl.stack(coordinates, -1),
        row.tensor(2),
        mutates=[0],
        expected=formulas.scatter_nd_update,
    )


@replays("ScatterUpdate", npu="torch.Tensor.index_copy_")
def test_scatter_update(row, replay):
    """Reads the slots target, numbers of lines, the new lines. The call takes INT64 numbers in one axis."""
    row.expect_inputs(3)
    target, lines = row.shape(0), row.shape(1)
    fits = target and row.shape(2) == (*lines, *target[1:])
    row.expect(fits, INPUT_SHAPES, "slot 2 must have the axes of slot 1, then those of slot 0 from the second on")
    numbers = row.indices(1, target[0], distinct=True).reshape(-1)
    updates = row.tensor(2, shape=(prod(lines), *target[1:]))
    replay(impl.index_copy_, row.tensor(0), 0, numbers.long(), updates, mutates=[0], expected=formulas.index_copy)


@replays("Scatter", npu="torch_npu.scatter_update_")
def test_scatter(row, replay):
    """Reads the slots cache, first position of each sequence (B), updates: they differ along the axis of positions."""
    row.expect_inputs(3)
    cache, batch, updates = row.shape(0), row.shape(1), row.shape(2)
    axes = [axis for axis, sizes in enumerate(zip(cache, updates, strict=False)) if sizes[0] != sizes[1]] or [1]
    axis = axes[0]
    fits = len(cache) == len(updates) > axis > 0 and len(axes) == 1 and batch == cache[:1]
    problem = (
        "slot 2 must be as slot 0 but along one axis, and slot 1 have a position for each line of their first axis"
    )
    row.expect(fits, INPUT_SHAPES, problem)
    positions = row.indices(1, cache[axis] - updates[axis] + 1)
    arguments = [row.tensor(0), positions, row.tensor(2), axis - len(cache)]
    replay(impl.scatter_update, *arguments, mutates=[0], expected=formulas.scatter_update)


@replays("IndexPutV2", "IndexPutV2AiCore", npu="torch.ops.aten.index_put_.default")
def test_index_put(row, replay):
    """Reads the slots target, updates, list of indexed axes, strides, an index tensor for each axis.

    Slot 2 has an element for each axis up to the last indexed one.
    """
    target, axes = row.shape(0), indexed_axes(row, list_slot=2, first_slot=4)
    slots = range(4, 4 + len(axes))
    shapes = [row.shape(slot) for slot in slots]
    indexed = shape_rules.broadcast(shapes)
    row.expect(indexed is not None, INPUT_SHAPES, "the index tensors (slot 4 on) do not broadcast")
    written = target[: axes.start] + indexed + target[axes.stop :]
    fits = shape_rules.broadcast([row.shape(1), written]) == written
    row.expect(fits, INPUT_SHAPES, f"slot 1 does not broadcast to {written}")
    row.assume("values are put, not added")
    replay(
        impl.index_put,
        row.tensor(0),
        [*[None] * axes.start, *_distinct(row, slots, shapes, target[axes.start : axes.stop])],
        row.tensor(1),
        mutates=[0],
        expected=formulas.index_put,
    )


_AMBIGUOUS = "an element is written more than once, and which value it keeps is not defined"


def _axis(row, source, indices):
    """Returns the axis of the indices: the one in which their shape differs from the source; else the last."""
    row.expect(len(indices) == len(source) and source, INPUT_SHAPES, "slots 0 and 1 (indices) must have as many axes")
    different = [axis for axis in range(len(source)) if indices[axis] != source[axis]]
    larger = [axis for axis in different if indices[axis] > source[axis]]
    row.expect(len(larger) <= 1, INPUT_SHAPES, "slot 1 (indices) is larger than slot 0 along more than one axis")
    axis = (larger or different or [len(source) - 1])[-1]
    if len(different) != 1:
        row.assume(f"indices run along axis {axis}")
    return axis


def _distinct(row, slots, shapes, sizes):
    """Returns coordinates of distinct elements: an index tensor for each axis of these sizes."""
    if len(set(shapes)) > 1:
        # Index tensors that broadcast to each other: if each is distinct along its axes, the elements are distinct.
        for shape, size in zip(shapes, sizes, strict=True):
            if prod(shape) > size:
                raise Unsupported(_AMBIGUOUS)
        return [row.indices(slot, size, distinct=True) for slot, size in zip(slots, sizes, strict=True)]
    if prod(shapes[0]) > prod(sizes):
        raise Unsupported(_AMBIGUOUS)
    rest = row.indices(slots[0], prod(sizes), distinct=True, shape=shapes[0])
    coordinates = []
    for size in reversed(sizes):
        coordinates.append(rest % size)
        rest = rest // size
    return coordinates[::-1]


#: The largest k of the kernel.
_LARGEST_K = 1024


@replays("TopKV2", "TopKV2AiCore", npu="torch.topk")
def test_top_k(row, replay):
    """Reads the slots x, k. The last axis of the output is k."""
    row.expect_inputs(1, 2)
    _, width, k = row.sizes("*all,width -> *all,k")
    row.expect(k <= width, OUTPUT_SHAPES, f"output 0 has more than the {width} numbers of slot 0 along the last axis")
    replay(impl.top_k, row.tensor(0, -4.0, 4.0), k, -1, expected=formulas.top_k)


@replays("ApplyTopKTopPCustom", npu="torch.ops._C_ascend.npu_apply_top_k_top_p")
def test_apply_top_k_top_p(row, replay, custom_opp):
    """Reads the slots sorted logits (B, V), their positions before the sort, p (B), k (B); p or k may be absent.

    The call takes unsorted logits and sorts them in another kernel.
    """
    row.expect_inputs(3, 4)
    _, vocabulary = row.sizes("rows,vocabulary; rows,vocabulary; ?rows; ?rows")
    row.expect(
        row.has(2) or row.has(3), INPUT_SHAPES, "slots 2 (p) and 3 (k) are missing", "restore them from the capture"
    )
    limits = {}
    if row.has(2):
        limits["p"] = row.tensor(2, 0.5, 0.99)
    if row.has(3):
        limits["k"] = row.integers(3, 1, min(_LARGEST_K, vocabulary))
    replay(impl.apply_top_k_top_p, row.tensor(0, -4.0, 4.0), **limits, expected=formulas.apply_top_k_top_p)


@replays("HistogramV2", npu="torch.histc")
def test_histogram(row, replay):
    """Reads the slots x, and perhaps the least and the largest number. Counts experts: x is one of 0 ... bins - 1."""
    row.expect_inputs(1, 3)
    (bins,) = row.sizes("-> bins")
    replay(impl.histc, row.integers(0, 0, bins - 1), bins, 0, max(bins - 1, 1), expected=formulas.histogram)


@replays("LinearIndex", npu="torch.Tensor.scatter_")
def test_linear_index(row, replay):
    """Reads the slots indices, sizes of the tensor that is indexed. A scatter launches this kernel before its own."""
    row.expect_inputs(2)
    (sizes,) = row.sizes("*sizes; -> *sizes")
    row.expect_list(1, len(sizes), "the sizes of the tensor")
    row.assume("a scatter along the last axis into a tensor of the shape of the indices")
    indices, updates = row.indices(0, sizes[-1], along=len(sizes) - 1), impl.arange(prod(sizes), device=row.device)
    arguments = [row.filled(sizes, "INT64", -1), len(sizes) - 1, indices.long(), updates.reshape(sizes)]
    replay(impl.scatter_, *arguments, mutates=[0], output_slots=[None], expected=formulas.scatter_elements)


#: The most drafted tokens of a sequence, for which vLLM's kernel is compiled.
_MOST_DRAFTS = 128


@replays("expand_kernel", npu="vllm_ascend.ops.triton.reject_sample.expand_triton")
def test_expand(row, replay, custom_opp):
    """Reads the slots numbers (B), ends of the drafts of each sequence (B); writes the number of each drafted token."""
    row.expect_inputs(2)
    batch, tokens = row.sizes("batch; batch -> tokens")
    fits = tokens <= _MOST_DRAFTS * batch
    row.expect(fits, OUTPUT_SHAPES, f"{batch} sequences have more than {_MOST_DRAFTS} drafted tokens each")
    row.assume("the drafts are spread evenly")
    ends = row.numbers(1, [(i + 1) * tokens // batch for i in range(batch)])
    operands = batch, row.destination(), row.integers(0, 0, 3), ends, 0, 1, _MOST_DRAFTS
    replay(impl.expand_triton, *operands, overwrites=[1], expected=formulas.expand)


@replays("prepare_inputs_padded_kernel", npu="opatlas.bench.implementations.torch.prepare_inputs_padded")
def test_prepare_inputs_padded(row, replay):
    """Reads the slots ends of drafts (B), valid tokens (B), starts (B + 1); writes last valid tokens, rejected ones."""
    row.expect_inputs(3)
    batch, starts = row.sizes("batch; batch; starts -> batch; batch")
    row.expect(starts == batch + 1, INPUT_SHAPES, f"slot 2 must have {batch + 1} starts")
    row.assume("three drafted tokens of each sequence but the first, which has none")
    ends, starts = row.numbers(0, range(0, 3 * batch, 3)), row.numbers(2, [0, *range(1, 4 * batch, 4)])
    replay(impl.prepare_inputs_padded, ends, row.integers(1, 1, 4), starts, expected=formulas.prepare_inputs_padded)


@replays("rejection_random_sample_kernel", npu="opatlas.bench.implementations.torch.rejection_random_sample")
def test_rejection_random_sample(row, replay):
    """Reads the slots ends of drafts (B), drafted tokens (B S), probabilities (B S, V); writes tokens (B, S + 1).

    The last slot is a bonus token (B, 1), or probabilities of the target: those of the draft come before them. Triton
    tells a profiler of Ascend the first five tensors of a call; the other ones are drawn.
    """
    row.expect_inputs(4)
    batch, tokens, vocabulary, last, width = row.sizes("batch; tokens; tokens,vocabulary; *last -> batch,width")
    fits = last in ((batch, 1), (tokens, vocabulary))
    row.expect(fits, INPUT_SHAPES, f"slot 3 must be {(batch, 1)} or {(tokens, vocabulary)}")
    draft, target, drafted = _drafts(row, batch, width - 1, last[-1] > 1)
    bonus, recovered, uniform = row.indices(1, vocabulary, shape=(batch, 1)), row.indices(1, vocabulary), (tokens,)
    given = draft, target, bonus, recovered, row.tensor(2, 0.0, 1.0, shape=uniform)
    replay(impl.rejection_random_sample, drafted, *given, expected=formulas.rejection_random_sample)


@replays("sample_recovered_tokens_kernel", npu="opatlas.bench.implementations.torch.sample_recovered_tokens")
def test_sample_recovered_tokens(row, replay):
    """Reads slots as `test_rejection_random_sample`, without a bonus token; writes tokens (B S), and what it read.

    The noise of each sequence (B, V) is drawn.
    """
    row.expect_inputs(3, 4)
    batch, tokens, vocabulary = row.sizes("batch; tokens; tokens,vocabulary; ?tokens,vocabulary -> tokens")
    draft, target, drafted = _drafts(row, batch, tokens // max(batch, 1), row.has(3))
    noise = row.tensor(2, 0.1, 2.0, shape=(batch, 1, vocabulary)).expand(-1, tokens // batch, -1)
    operands, expected = (drafted, draft, target, noise), formulas.sample_recovered_tokens
    replay(impl.sample_recovered_tokens, *operands, output_slots=[0], expected=expected)


def _drafts(row, batch, drafts, is_given):
    """Returns probabilities by the draft, None where it is sure, those by the target, and the drafted tokens."""
    tokens, vocabulary = row.shape(2)
    fits = tokens == batch * drafts > 0
    row.expect(fits, INPUT_SHAPES, f"the {tokens} drafted tokens are not {drafts} of each of {batch} sequences")
    row.assume("all sequences have as many drafts, and none is greedy")
    draft = row.tensor(2, 0.1, 1.0) if is_given else None
    return draft, row.tensor(2, 0.0, 1.0), row.indices(1, vocabulary)
