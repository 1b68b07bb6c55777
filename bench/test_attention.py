"""Replays of attention: in inference and in training."""

from __future__ import annotations

import math

from opatlas.row.columns import INPUT_DTYPES, INPUT_SHAPES, OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.run.inputs import attention as fia
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl

#: The mask that means a causal mask of any size in npu_ring_mla.
RING_MASK = (512, 512)


#: The second call takes sinks, too.
_FUSED_INFER_ATTENTION = "torch_npu.npu_fused_infer_attention_score or torch_npu.npu_fused_infer_attention_score_v2"


@replays("FusedInferAttentionScore", npu=_FUSED_INFER_ATTENTION)
def test_fused_infer_attention_score(row, replay):
    operator = fia.with_operator_shapes(row)
    call = fia.read_attention(operator)
    key = operator.tensor(fia.KEY, *fia.RANGE)
    # Absorbed latent attention reads one cache as both keys and values.
    value = (
        key
        if call.rope and call.table and operator.shape(fia.VALUE) == operator.shape(fia.KEY)
        else operator.tensor(fia.VALUE)
    )
    replay(
        impl.fused_infer_attention_score,
        operator.tensor(fia.QUERY, *fia.RANGE),
        key,
        value,
        atten_mask=row.upper_triangle(fia.CAUSAL_MASK, call.mask_dtype) if call.mask_dtype else None,
        block_table=operator.block_table(call.table, call.used_blocks, key.shape[0]) if call.table else None,
        query_rope=operator.tensor(fia.QUERY_ROPE, *fia.RANGE) if call.rope else None,
        key_rope=operator.tensor(fia.KEY_ROPE, *fia.RANGE) if call.rope else None,
        **call.keywords,
        **({"learnable_sink": operator.tensor(fia.SINK, call.sinks - 1, call.sinks + 1)} if call.sinks else {}),
        output_slots=[0, 1] if call.keywords["softmax_lse_flag"] else [0],
        expected=formulas.fused_infer_attention_score,
    )


@replays("RINGMLAPrefillBF16Kernel", npu="torch_npu.atb.npu_ring_mla")
def test_ring_mla(row, replay):
    """Reads slots 0 to 5: queries, their rope part, keys, their rope part, values, mask; 13 and 14: an earlier step.

    A capture lacks the lengths of sequences, which are on the host: one sequence is assumed.
    """
    row.expect_slots(range(5), (5, 13, 14))
    tokens, heads, width, rope, keys, kv_heads = row.sizes(
        "tokens,heads,width; tokens,heads,rope; keys,kv_heads,width; keys,kv_heads,rope; keys,kv_heads,value"
        ";;;;;;;;; ?tokens,heads,value; ?heads,tokens"
    )[:6]
    row.expect(kv_heads and not heads % kv_heads, INPUT_SHAPES, "queries and keys do not match")
    later = row.has(13)
    row.expect(later == row.has(14), INPUT_SHAPES, "slot 13 or 14 (an earlier step) is missing", "restore it")
    row.expect(later or tokens == keys, INPUT_SHAPES, "a first step must have as many queries as keys")
    row.assume("all tokens are one sequence")
    dtype = row.input_slots[0].dtype
    # In FLOAT16 the kernel adds the mask to the scores; in BF16 it first multiplies it by a large negative number.
    mask = row.upper_triangle(RING_MASK, dtype, -math.inf if dtype == "FLOAT16" else 1)
    # The sums of the earlier step are about as large as those of this step, so that both count.
    size = math.log(max(keys, 1)) + 0.9
    replay(
        impl.ring_mla,
        *(row.tensor(slot, *fia.RANGE) for slot in range(4)),
        row.tensor(4),
        mask,
        row.lengths([[tokens], [keys]] if later else [tokens], host=True),
        heads,
        kv_heads,
        pre_out=row.tensor(13) if later else None,
        prev_lse=row.tensor(14, size - 1, size + 1) if later else None,
        qk_scale=1 / math.sqrt(width + rope),
        kernel_type="kernel_type_high_precision",
        mask_type="no_mask" if later else "mask_type_triu",
        input_layout="type_bsnd",
        calc_type="calc_type_default" if later else "calc_type_first_ring",
        expected=formulas.ring_mla,
    )


@replays("AttentionUpdate", npu="torch_npu.npu_attention_update")
def test_attention_update(row, replay):
    """Reads the slots log-sum-exps (N) of the parts of a sequence, then the results of the parts (N, D).

    A second output has the log-sum-exps over all parts.
    """
    parts = len(row.input_slots) // 2
    row.expect(parts and len(row.input_slots) == 2 * parts, INPUT_SHAPES, "the numbers of sums and results differ")
    row.sizes("; ".join(["*tokens"] * parts + ["*tokens,width"] * parts))
    with_sums = len(row.output_slots) > 1 and not row.output_slots[1].absent
    replay(
        impl.attention_update,
        [row.tensor(slot, -4.0, 4.0) for slot in range(parts)],
        [row.tensor(parts + slot, *fia.RANGE) for slot in range(parts)],
        int(with_sums),
        output_slots=[0, 1] if with_sums else [0],
        expected=formulas.attention_update,
    )


@replays("IncreFlashAttention", npu="torch_npu.npu_incre_flash_attention")
def test_incre_flash_attention(row, replay):
    """Reads the slots queries of one token, keys, values, perhaps a mask, which is assumed to hide no key."""
    _replay_dense(row, replay)


@replays("PromptFlashAttention", npu="torch_npu.npu_prompt_flash_attention")
def test_prompt_flash_attention(row, replay):
    """Reads the slots queries, keys, values, perhaps a mask, which is assumed to be causal."""
    _replay_dense(row, replay)


def _replay_dense(row, replay):
    """Replays attention of sequences of one length; graphs leave out absent slots before that of the mask."""
    q, k = row.shape(0), row.shape(1)
    row.expect(
        k == row.shape(2) and q[:1] == k[:1] and len(q) == len(k) in (3, 4), INPUT_SHAPES, "the slots do not fit"
    )
    if len(q) == 3:
        width = next((size for size in (128, 80, 64) if not q[2] % size and not k[2] % size), q[2])
        row.assume(f"heads of {width} features")
        layout, heads, kv_heads = "BSH", q[2] // width, k[2] // width
    else:
        # One of two axes has the tokens: a single one, or more tokens than there are heads.
        fitting = [axis for axis in (1, 2) if k[axis] and not q[axis] % k[axis]]
        axis = min(fitting, key=lambda axis: (q[3 - axis] != 1, q[axis]), default=0)
        row.expect(axis and q[3] == k[3], INPUT_SHAPES, "slots 0 and 1 have no matching heads")
        layout, heads, kv_heads, width = ("BNSD", "BSND")[axis - 1], q[axis], k[axis], q[3]
    queries, keys = (shape[layout.index("S")] for shape in (q, k))
    call = {"num_heads": heads, "num_key_value_heads": kv_heads, "input_layout": layout}
    for slot in [slot for slot in range(3, len(row.input_slots)) if row.has(slot)]:
        shape, dtype = row.shape(slot), row.input_slots[slot].dtype
        if dtype not in ("BOOL", "INT8", "UINT8") or "atten_mask" in call:
            raise Unsupported(f"{row.kernel_type} is replayed with queries, keys, values and a mask alone")
        own = shape[-1:] == (keys,) if queries == 1 else shape[-2:] == (queries, keys) == (keys, keys)
        row.expect(
            own or (shape == fia.CAUSAL_MASK and queries <= keys),
            INPUT_SHAPES,
            f"slot {slot} must be the mask of the {queries} queries and {keys} keys",
        )
        call["atten_mask"] = row.upper_triangle(shape, dtype) if queries > 1 else row.filled(shape, dtype, 0)
        call |= {"sparse_mode": 3} if shape == fia.CAUSAL_MASK else {}
        row.assume("a causal mask" if queries > 1 else "no key is hidden")
    tensors = (row.tensor(slot, *fia.RANGE) for slot in range(3))
    replay(impl.dense_attention, *tensors, **call, scale_value=1 / math.sqrt(width), expected=formulas.dense_attention)


_DROPOUT = 4
_DROPPED = "slot {} is a dropout mask, and no row has the probability of a drop: capture without dropout"


@replays("FlashAttentionScore", npu="torch_npu.npu_fusion_attention")
def test_flash_attention(row, replay):
    """Reads slots 0 to 2: queries, keys, values; 6: mask. Outputs: largest scores, their sums, nothing, result."""
    if row.has(_DROPOUT):
        raise Unsupported(_DROPPED.format(_DROPOUT))
    row.expect_slots(range(3), (6,))
    call, scale = _training_call(row, row.output_shape(0), 6 if row.has(6) else None)
    tensors = (row.tensor(slot, *fia.RANGE) for slot in range(3))
    call |= {"scale": scale, "output_slots": [3, 0, 1]}
    replay(impl.flash_attention_score, *tensors, **call, expected=formulas.flash_attention_score)


@replays("FlashAttentionScoreGrad", npu="torch_npu.npu_fusion_attention_grad")
def test_flash_attention_grad(row, replay):
    """Reads the inputs, the gradient of the result, and outputs of the forward kernel.

    Slots 0 to 3: queries, keys, values, gradient of the result; then perhaps a mask; then outputs of the forward
    kernel: largest scores, their sums, and the result as the last slot.
    """
    row.expect_slots(range(4), range(4, len(row.input_slots)))
    later = [slot for slot in range(4, len(row.input_slots)) if row.has(slot)]
    for slot in later:
        if row.input_slots[slot].dtype == "UINT8" and len(row.shape(slot)) == 1:
            raise Unsupported(_DROPPED.format(slot))
    *mask, highest, total, result = later if len(later) > 2 else [0, 0, 0]
    fits = len(later) in (3, 4) and row.shape(highest) == row.shape(total)
    problem = "from slot 4 on, only a mask, the largest scores, their sums and the result are replayed"
    row.expect(fits, INPUT_SHAPES, problem)
    row.expect_shape(3, row.shape(0))
    row.expect_shape(result, row.shape(0))
    query, key, value = (row.tensor(slot, *fia.RANGE) for slot in range(3))
    call, scale = _training_call(row, row.shape(highest), mask[0] if mask else None)
    # Only real outputs of the forward kernel lead to gradients that mean something.
    attention, softmax_max, softmax_sum = impl.flash_attention_score(query, key, value, **call, scale=scale)
    call |= {"softmax_max": softmax_max, "softmax_sum": softmax_sum, "attention_in": attention, "scale_value": scale}
    call |= {"output_slots": [0, 1, 2], "expected": formulas.flash_attention_grad}
    replay(impl.flash_attention_grad, query, key, value, row.tensor(3), **call)


def _training_call(row, statistics, mask):
    """Returns the arguments that are not tensors, with the mask, and the scale, whose name differs between the calls.

    The shape of the statistics, (B, N, S, 8), gives the layout.
    """
    q, k, v = (row.shape(slot) for slot in range(3))
    fits = len(statistics) == 4 and statistics[-1] == 8
    row.expect(fits, OUTPUT_SHAPES, "the largest scores and their sums must be (batch, heads, queries, 8)")
    batch, heads, queries, _ = statistics
    layouts = {
        "SBH": (queries, batch, q[-1]),
        "BSH": (batch, queries, q[-1]),
        "BSND": (batch, queries, heads, q[-1]),
        "BNSD": (batch, heads, queries, q[-1]),
    }
    layout = next((name for name, shape in layouts.items() if shape == q), None)
    if layout and k != v and k[:-1] == v[:-1]:
        raise Unsupported(f"slot 2 (values) is {v} and slot 1 (keys) {k}: values are replayed with the keys' width")
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
    fits = queries == keys and (shape == fia.CAUSAL_MASK or shape[-2:] == (queries, keys))
    problem = f"slot {mask} must be the mask of {queries} queries and {keys} keys, equally many, or of 2048,2048"
    row.expect(fits, INPUT_SHAPES, problem)
    # A capture does not record the values of a mask: it is causal, as in the training of language models.
    if shape != fia.CAUSAL_MASK:
        row.assume("the mask is causal")
    sparse_mode = 2 if shape == fia.CAUSAL_MASK else 0
    return {**arguments, "atten_mask": row.upper_triangle(shape, dtype), "sparse_mode": sparse_mode}, scale
