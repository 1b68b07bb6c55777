"""Replays of elementwise and comparison kernels."""

from __future__ import annotations

from bench import expected, impl
from bench.registry import replays

#: What a row with one tensor adds or multiplies: the capture does not record the scalar.
SCALAR = 2


@replays("Add", "AddAiCore", npu="torch.add")
def test_add(row, replay):
    row.expect_inputs(1, 2)
    x, y = (*row.inputs(), SCALAR)[:2]
    replay(impl.add, x, y, expected=expected.add)
