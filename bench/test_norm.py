"""Replays of normalization kernels."""

from __future__ import annotations

from bench import expected, impl
from bench.registry import replays


@replays("RmsNorm", npu="torch_npu.npu_rms_norm")
def test_rms_norm(row, replay):
    row.expect_inputs(2)
    x, gamma = row.inputs()
    replay(impl.rms_norm, x, gamma, epsilon=1e-6, expected=expected.rms_norm)
