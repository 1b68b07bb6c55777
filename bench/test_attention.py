"""Replays of attention in inference."""

from __future__ import annotations

import math

from opatlas.row.columns import INPUT_SHAPES
from opatlas.run.inputs.attention import (
    CAUSAL_MASK,
    KEY,
    KEY_ROPE,
    QUERY,
    QUERY_ROPE,
    RANGE,
    VALUE,
    read_attention,
    with_operator_shapes,
)
from opatlas.run.inputs.sequences import expect_slots, lengths_tensor
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl

#: The mask that means a causal mask of any size in npu_ring_mla.
RING_MASK = (512, 512)


@replays("FusedInferAttentionScore", npu="torch_npu.npu_fused_infer_attention_score")
def test_fused_infer_attention_score(row, replay):
    operator = with_operator_shapes(row)
    call = read_attention(operator)
    key = operator.tensor(KEY, *RANGE)
    # Absorbed latent attention reads one cache as both keys and values.
    value = key if call.rope and call.table and operator.shape(VALUE) == operator.shape(KEY) else operator.tensor(VALUE)
    replay(
        impl.fused_infer_attention_score,
        operator.tensor(QUERY, *RANGE),
        key,
        value,
        atten_mask=row.upper_triangle(CAUSAL_MASK, call.mask_dtype) if call.mask_dtype else None,
        actual_seq_lengths=call.query_lengths,
        actual_seq_lengths_kv=call.kv_lengths,
        block_table=operator.block_table(call.table, call.used_blocks, key.shape[0]) if call.table else None,
        query_rope=operator.tensor(QUERY_ROPE, *RANGE) if call.rope else None,
        key_rope=operator.tensor(KEY_ROPE, *RANGE) if call.rope else None,
        num_heads=call.heads,
        scale=call.scale,
        input_layout=call.layout,
        num_key_value_heads=call.kv_heads,
        sparse_mode=call.sparse_mode,
        block_size=call.block_size,
        softmax_lse_flag=call.with_lse,
        output_slots=[0, 1] if call.with_lse else [0],
        expected=formulas.fused_infer_attention_score,
    )


@replays("RINGMLAPrefillBF16Kernel", npu="torch_npu.atb.npu_ring_mla")
def test_ring_mla(row, replay):
    """Reads slots 0 to 5: queries, their rope part, keys, their rope part, values, mask; 13 and 14: an earlier step.

    A capture lacks the lengths of sequences, which are on the host: one sequence is assumed.
    """
    expect_slots(row, range(5), (5, 13, 14))
    q, q_rope, k, k_rope, v = (row.shape(slot) for slot in range(5))
    row.expect(
        len(q) == len(k) == 3 and (q[:2], k[:2], k[:2], q[-1]) == (q_rope[:2], k_rope[:2], v[:2], k[-1]),
        INPUT_SHAPES,
        "slots 0 and 1, and slots 2 to 4, must have the same tokens and heads, and slots 0 and 2 the same width",
    )
    row.expect(k[1] and not q[1] % k[1] and q_rope[-1] == k_rope[-1], INPUT_SHAPES, "queries and keys do not match")
    later = row.has(13)
    row.expect(later == row.has(14), INPUT_SHAPES, "slot 13 or 14 (an earlier step) is missing", "restore it")
    row.expect(later or q[0] == k[0], INPUT_SHAPES, "a first step must have as many queries as keys")
    row.expect(
        not later or (row.shape(13), row.shape(14)) == ((*q[:2], v[-1]), (q[1], q[0])),
        INPUT_SHAPES,
        "slots 13 and 14 must have the shapes (tokens, heads, D) and (heads, tokens)",
    )
    row.assume("all tokens are one sequence")
    dtype = row.input_slots[0].dtype
    # In FLOAT16 the kernel adds the mask to the scores; in BF16 it first multiplies it by a large negative number.
    mask = row.upper_triangle(RING_MASK, dtype, -math.inf if dtype == "FLOAT16" else 1)
    # The sums of the earlier step are about as large as those of this step, so that both count.
    size = math.log(max(k[0], 1)) + 0.9
    replay(
        impl.ring_mla,
        *(row.tensor(slot, *RANGE) for slot in range(4)),
        row.tensor(4),
        mask,
        lengths_tensor(row, [[q[0]], [k[0]]] if later else [q[0]], host=True),
        q[1],
        k[1],
        pre_out=row.tensor(13) if later else None,
        prev_lse=row.tensor(14, size - 1, size + 1) if later else None,
        qk_scale=1 / math.sqrt(q[-1] + q_rope[-1]),
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
    row.expect(row.shape(parts), INPUT_SHAPES, f"slot {parts} (results of a part) has no axes")
    for slot in range(parts):
        row.expect_shape(slot, row.shape(parts)[:-1], meaning="logarithms of sums")
        row.expect_shape(parts + slot, row.shape(parts), meaning="results of a part")
    with_sums = len(row.output_slots) > 1 and not row.output_slots[1].absent
    replay(
        impl.attention_update,
        [row.tensor(slot, -4.0, 4.0) for slot in range(parts)],
        [row.tensor(parts + slot, *RANGE) for slot in range(parts)],
        int(with_sums),
        output_slots=[0, 1] if with_sums else [0],
        expected=formulas.attention_update,
    )
