"""Replays of matrix products."""

from __future__ import annotations

from bench import expected, impl
from bench.registry import replays


@replays("MatMulV2", "MatMulV3", "MatMulCommon", npu="torch.mm")
def test_matmul(row, replay):
    a, b = row.inputs()
    replay(impl.matmul, a, b, expected=expected.matmul)
