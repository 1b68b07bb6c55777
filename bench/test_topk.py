"""Replays of top-k, and of the top-k and top-p of samplers."""

from __future__ import annotations

from opatlas.row.columns import INPUT_SHAPES, OUTPUT_SHAPES
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl

#: The largest k of the kernel.
_LARGEST_K = 1024


@replays("TopKV2", "TopKV2AiCore", npu="torch.topk")
def test_top_k(row, replay):
    """Reads the slots x, k. The last axis of the output is k."""
    row.expect_inputs(1, 2)
    x, values = row.tensor(0, -4.0, 4.0), row.output_shape()
    row.expect(
        x.dim() and len(values) == x.dim() and values[:-1] == x.shape[:-1] and values[-1] <= x.shape[-1],
        OUTPUT_SHAPES,
        f"output 0 must have the shape {tuple(x.shape)} of slot 0, or fewer elements along the last axis",
    )
    replay(impl.top_k, x, values[-1], -1, expected=formulas.top_k)


@replays("ApplyTopKTopPCustom", npu="torch.ops._C_ascend.npu_apply_top_k_top_p")
def test_apply_top_k_top_p(row, replay, custom_opp):
    """Reads the slots sorted logits (B, V), their positions before the sort, p (B), k (B); p or k may be absent.

    The call takes unsorted logits and sorts them in another kernel.
    """
    row.expect_inputs(3, 4)
    logits = row.tensor(0, -4.0, 4.0)
    row.expect(
        logits.dim() == 2 and row.shape(1) == logits.shape,
        INPUT_SHAPES,
        "slots 0 and 1 must have one shape, with two axes",
    )
    given = {name: slot for name, slot in (("p", 2), ("k", 3)) if row.has(slot)}
    row.expect(given, INPUT_SHAPES, "slots 2 (p) and 3 (k) are missing", "restore them from the capture")
    for name, slot in given.items():
        row.expect_shape(slot, logits.shape[:1], meaning=name)
    limits = {}
    if "p" in given:
        limits["p"] = row.tensor(2, 0.5, 0.99)
    if "k" in given:
        limits["k"] = row.integers(3, 1, min(_LARGEST_K, logits.shape[1]))
    replay(impl.apply_top_k_top_p, logits, **limits, expected=formulas.apply_top_k_top_p)
