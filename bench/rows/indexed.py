"""Rows of kernels that index a source, slot 0: along which of its axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from database.schema import INPUT_SHAPES, OUTPUT_SHAPES

if TYPE_CHECKING:
    from bench.rows.replay_row import ReplayRow


def gathered_axis(row: ReplayRow) -> int:
    """The first axis in whose place the output has those of slot 1, the indices. Raises InvalidRow."""
    source, indices, result = row.shape(0), row.shape(1), row.output_shape()
    for axis in range(len(source)):
        if result == source[:axis] + indices + source[axis + 1 :]:
            return axis
    raise row.refuse(
        OUTPUT_SHAPES, f"no axis of {source}, indexed by {indices}, gives this shape", "correct one of the shapes"
    )


def indexed_axes(row: ReplayRow, list_slot: int, first_slot: int) -> range:
    """The neighbouring axes that index tensors, all slots from `first_slot` on, index. Raises InvalidRow.

    `list_slot` has an element for each axis up to the last of them.
    """
    rank, count = len(row.shape(0)), max(len(row.input_slots) - first_slot, 1)
    listed = row.shape(list_slot)
    end = listed[0] if len(listed) == 1 else 0
    if not count <= end <= rank:
        raise row.refuse(
            INPUT_SHAPES,
            f"slot {list_slot} must be a list with an element for each axis up to the last indexed one: "
            f"{count} to {rank}",
            "correct its shape, or restore the missing index tensors",
        )
    return range(end - count, end)


def is_grid_index(row: ReplayRow) -> bool:
    """Whether an Index has the form of msmodeling's shape grid, `16,51;1;11;1 -> 11,51`: slot 2 holds the indices.

    In a captured row slot 2 lists the steps of the source's axes, and slot 3 holds the indices: its output has one row.
    """
    if len(row.input_slots) != 4 or not row.shape(1) == row.shape(3) == (1,):
        return False
    source, listed = row.shape(0), row.shape(2)
    steps = (len(source),)
    return len(source) > 1 and len(listed) == 1 and (listed != steps or row.output_shape() == steps + source[1:])
