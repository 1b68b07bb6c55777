"""Replays of reductions and scans."""

from __future__ import annotations

from bench import expected, impl
from bench.registry import replays
from bench.rows import resolve
from database.schema import OUTPUT_SHAPES


@replays("ReduceSum", "ReduceSumOpAiCore", npu="torch.sum")
def test_reduce_sum(row, replay):
    row.expect_inputs(1, 2)
    x = row.tensor(0)
    # Slot 1 lists the axes: it tells how many there are.
    count = (row.shape(1) or (1,))[0] if len(row.input_slots) == 2 else None
    reduction = resolve.reduction(tuple(x.shape), row.output_shape(), count)
    if reduction is None:
        raise row.refuse(
            OUTPUT_SHAPES,
            f"no sum of the input {tuple(x.shape)} over {'some' if count is None else count} axes has this shape",
            "correct the input, the length of the list of axes (slot 1) or the output",
        )
    axes, keepdim = reduction
    replay(impl.reduce_sum, x, axes, keepdim, dtype=row.output_dtype(), expected=expected.reduce_sum)


@replays("Cumsum", npu="torch.cumsum")
def test_cumsum(row, replay):
    """The axis is not in a capture; it is the last one."""
    row.expect_inputs(1, 2)
    replay(impl.cumulative_sum, row.tensor(0), -1, dtype=row.output_dtype(), expected=expected.cumulative_sum)
