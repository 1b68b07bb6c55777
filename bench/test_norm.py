"""Replays of normalization kernels."""

from __future__ import annotations

from bench import expected, impl
from bench.registry import replays
from database.schema import INPUT_SHAPES


@replays("RmsNorm", npu="torch_npu.npu_rms_norm")
def test_rms_norm(row, replay):
    row.expect_inputs(2)
    x, gamma = row.inputs()
    if gamma.shape != x.shape[-1:]:
        raise row.refuse(INPUT_SHAPES, "slot 1 (gamma) must have the size of slot 0's last axis", "correct one of them")
    replay(impl.rms_norm, x, gamma, epsilon=1e-6, expected=expected.rms_norm)
