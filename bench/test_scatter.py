"""Replays of kernels that gather from or scatter to indexed positions."""

from __future__ import annotations

from math import prod

from opatlas.row.columns import INPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.inputs import shape_rules
from opatlas.run.inputs.operands import gathered_axis, indexed_axes
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl


@replays("GatherV3", "GatherV3AiCore", "Gather", npu="torch.index_select")
def test_index_select(row, replay):
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
    row.expect(
        1 <= axes <= len(target) and row.shape(2) == positions[:-1] + target[axes:],
        INPUT_SHAPES,
        f"slot 1 must be (..., k), where k is 1 to {len(target)}, and slot 2 (..., the axes of slot 0 from k on)",
    )
    coordinates = _distinct(row, [1] * axes, [positions[:-1]] * axes, target[:axes])
    replay(
        impl.scatter_nd_update,
        row.tensor(0),
        impl.stack(coordinates, -1),
        row.tensor(2),
        mutates=[0],
        expected=formulas.scatter_nd_update,
    )


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
    row.expect(
        shape_rules.broadcast([row.shape(1), written]) == written,
        INPUT_SHAPES,
        f"slot 1 does not broadcast to {written}",
    )
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
