"""Replays of reductions and scans."""

from __future__ import annotations

from opatlas.row.columns import INPUT_SHAPES, OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.inputs import shape_rules
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl


@replays("ReduceSum", "ReduceSumOpAiCore", "ReduceSumD", npu="torch.sum")
def test_reduce_sum(row, replay):
    """Replays ReduceSumD, of older toolkits with fixed axes, by a call that launches ReduceSum."""
    row.expect_inputs(1, 2)
    x = row.tensor(0)
    replay(impl.sum, x, *_reduction(row, "sum"), dtype=row.output_dtype(), expected=formulas.reduce_sum)


@replays("ReduceMean", "ReduceMeanAiCore", "ReduceMeanD", npu="torch.mean")
def test_reduce_mean(row, replay):
    """Replays ReduceMeanD, of older toolkits with fixed axes, by a call that launches ReduceMean."""
    row.expect_inputs(1, 2)
    if not row.output_dtype().is_floating_point:
        raise Unsupported("torch has no mean in integers")
    axes, keepdim = _reduction(row, "mean")
    row.expect(0 not in [row.shape(0)[axis] for axis in axes], INPUT_SHAPES, "slot 0 has no elements, and so no mean")
    x = row.tensor(0)
    replay(impl.mean, x, axes, keepdim, dtype=row.output_dtype(), expected=formulas.reduce_mean)


@replays("Cumsum", npu="torch.cumsum")
def test_cumsum(row, replay):
    """Assumes the last axis, because a capture does not record the axis."""
    row.expect_inputs(1, 2)
    replay(impl.cumsum, row.tensor(0), -1, dtype=row.output_dtype(), expected=formulas.cumulative_sum)


def _reduction(row, name):
    """Returns the axes and whether they stay as ones; the length of slot 1, a list of axes, is their number."""
    count = (row.shape(1) or (1,))[0] if len(row.input_slots) == 2 else None
    reduction = shape_rules.reduction(row.shape(0), row.output_shape(), count)
    row.expect(
        reduction is not None,
        OUTPUT_SHAPES,
        f"no {name} of the input {row.shape(0)} over {'some' if count is None else count} axes has this shape",
    )
    return reduction
