"""Replays of attention in training, forward and backward."""

from __future__ import annotations

import math

from opatlas.row.columns import INPUT_DTYPES, INPUT_SHAPES, OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.inputs.attention import CAUSAL_MASK, RANGE
from opatlas.run.inputs.sequences import expect_slots
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl

_DROPOUT = 4
_DROPPED = "slot {} is a dropout mask, and no row has the probability of a drop: capture without dropout"


@replays("FlashAttentionScore", npu="torch_npu.npu_fusion_attention")
def test_flash_attention(row, replay):
    """Reads slots 0 to 2: queries, keys, values; 6: mask. Outputs: largest scores, their sums, nothing, result."""
    if row.has(_DROPOUT):
        raise Unsupported(_DROPPED.format(_DROPOUT))
    expect_slots(row, range(3), (6,))
    call, scale = _call(row, row.output_shape(0), 6 if row.has(6) else None)
    replay(
        impl.flash_attention_score,
        *(row.tensor(slot, *RANGE) for slot in range(3)),
        **call,
        scale=scale,
        output_slots=[3, 0, 1],
        expected=formulas.flash_attention_score,
    )


@replays("FlashAttentionScoreGrad", npu="torch_npu.npu_fusion_attention_grad")
def test_flash_attention_grad(row, replay):
    """Reads the inputs, the gradient of the result, and outputs of the forward kernel.

    Slots 0 to 3: queries, keys, values, gradient of the result; then perhaps a mask; then outputs of the forward
    kernel: largest scores, their sums, and the result as the last slot.
    """
    expect_slots(row, range(4), range(4, len(row.input_slots)))
    later = [slot for slot in range(4, len(row.input_slots)) if row.has(slot)]
    for slot in later:
        if row.input_slots[slot].dtype == "UINT8" and len(row.shape(slot)) == 1:
            raise Unsupported(_DROPPED.format(slot))
    *mask, highest, total, result = later if len(later) > 2 else [0, 0, 0]
    row.expect(
        len(later) in (3, 4) and row.shape(highest) == row.shape(total),
        INPUT_SHAPES,
        "from slot 4 on, only a mask, the largest scores, their sums and the result are replayed",
    )
    row.expect_shape(3, row.shape(0))
    row.expect_shape(result, row.shape(0))
    query, key, value = (row.tensor(slot, *RANGE) for slot in range(3))
    call, scale = _call(row, row.shape(highest), mask[0] if mask else None)
    # Only real outputs of the forward kernel lead to gradients that mean something.
    attention, softmax_max, softmax_sum = impl.flash_attention_score(query, key, value, **call, scale=scale)
    replay(
        impl.flash_attention_grad,
        query,
        key,
        value,
        row.tensor(3),
        **call,
        softmax_max=softmax_max,
        softmax_sum=softmax_sum,
        attention_in=attention,
        scale_value=scale,
        output_slots=[0, 1, 2],
        expected=formulas.flash_attention_grad,
    )


def _call(row, statistics, mask):
    """Returns the arguments that are not tensors, with the mask, and the scale, whose name differs between the calls.

    The shape of the statistics, (B, N, S, 8), gives the layout.
    """
    q, k, v = (row.shape(slot) for slot in range(3))
    row.expect(
        len(statistics) == 4 and statistics[-1] == 8,
        OUTPUT_SHAPES,
        "the largest scores and their sums must be (batch, heads, queries, 8)",
    )
    batch, heads, queries, _ = statistics
    layouts = {
        "SBH": (queries, batch, q[-1]),
        "BSH": (batch, queries, q[-1]),
        "BSND": (batch, queries, heads, q[-1]),
        "BNSD": (batch, heads, queries, q[-1]),
    }
    layout = next((name for name, shape in layouts.items() if shape == q), None)
    if layout and k != v and k[:-1] == v[:-1]:
        raise Unsupported(
            f"slot 2 (values) is {v} and slot 1 (keys) {k}: values are replayed with the keys' width only"
        )
    width, rest = (q[-1], 0) if len(q) == 4 else divmod(q[-1], max(heads, 1))
    kv_heads = 0
    if layout and len(k) == len(q) and k == v and width and not rest:
        heads_and_rest = (k[layout.index("N")], k[-1] - width) if "N" in layout else divmod(k[-1], width)
        kv_heads = heads_and_rest[0] if not heads_and_rest[1] else 0
    if layout is None or not kv_heads or heads % kv_heads or k[layout.index("B")] != batch:
        raise row.refuse(
            INPUT_SHAPES,
            f"slots 0 to 2 must be queries, keys and values of {batch} x {queries} tokens and {heads} "
            f"heads in one of the layouts {', '.join(layouts)}",
            "correct the shapes; TND is not replayed",
        )
    arguments, scale = {"head_num": heads, "input_layout": layout}, 1 / math.sqrt(width)
    if mask is None:
        return arguments, scale
    keys = k[layout.index("S")]
    shape, dtype = row.shape(mask), row.input_slots[mask].dtype
    row.expect(dtype in ("BOOL", "UINT8"), INPUT_DTYPES, f"slot {mask} (mask) is {dtype}, not BOOL or UINT8")
    row.expect(
        queries == keys and (shape == CAUSAL_MASK or shape[-2:] == (queries, keys)),
        INPUT_SHAPES,
        f"slot {mask} must be the mask of {queries} queries and {keys} keys, equally many, or of 2048,2048",
    )
    # A capture does not record the values of a mask: it is causal, as in the training of language models.
    if shape != CAUSAL_MASK:
        row.assume("the mask is causal")
    sparse_mode = 2 if shape == CAUSAL_MASK else 0
    return {**arguments, "atten_mask": row.upper_triangle(shape, dtype), "sparse_mode": sparse_mode}, scale
