"""Replays of sparse attention: the choice of the keys of a query, and the attention over these keys."""

from __future__ import annotations

import math
from itertools import accumulate

from opatlas.row.columns import INPUT_SHAPES
from opatlas.run.inputs.attention import RANGE
from opatlas.run.inputs.sequences import assign_pages, expect_slots, lengths_tensor, split_evenly, spread_positions
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl


@replays("LightningIndexer", npu="torch_npu.npu_lightning_indexer")
def test_lightning_indexer(row, replay):
    """Checks the outputs keys of each query, perhaps their scores."""
    arguments, keywords = _indexer_call(row)
    with_values = len(row.output_slots) > 1 and len(row.output_slots[1].shape) > 1
    replay(
        impl.lightning_indexer,
        *arguments,
        **keywords,
        return_value=with_values,
        output_slots=[0, 1] if with_values else [0],
        expected=formulas.lightning_indexer,
    )


@replays("LightningIndexerVllm", npu="torch.ops._C_ascend.npu_lightning_indexer")
def test_lightning_indexer_vllm(row, replay, custom_opp):
    """Replays LightningIndexer without scores, the kernel of older versions of vllm-ascend."""
    arguments, keywords = _indexer_call(row)
    replay(impl.lightning_indexer_vllm, *arguments, **keywords, output_slots=[0], expected=formulas.lightning_indexer)


def _indexer_call(row):
    """Reads the slots queries (T, N, D), keys (blocks, block size, 1, D), weights (T, N), two lengths, block table."""
    expect_slots(row, range(6))
    query, cache, weights = (row.shape(slot) for slot in range(3))
    row.expect(
        len(query) == 3 and weights == query[:2] and cache[2:] == (1, query[-1]),
        INPUT_SHAPES,
        "slots 0 to 2 must have the shapes (tokens, heads, D), (blocks, block size, 1, D) and (tokens, heads)",
        "correct their shapes; other layouts are not replayed",
    )
    queries, keys, table = _sequences(row, query, cache, table_slot=5, length_slots=(3, 4))
    return (row.tensor(0, *RANGE), row.tensor(1, *RANGE), row.tensor(2)), {
        "actual_seq_lengths_query": lengths_tensor(row, list(accumulate(queries)), host=False),
        "actual_seq_lengths_key": lengths_tensor(row, keys, host=False),
        "block_table": table,
        "layout_query": "TND",
        "layout_key": "PA_BSND",
        "sparse_count": row.output_shape()[-1],
        "sparse_mode": 3,
    }


#: The operator of vllm-ascend, which engines call, launches its own kernel; the call of torch_npu launches CANN's.
_SPARSE_FLASH_ATTENTION = "torch.ops._C_ascend.npu_sparse_flash_attention or torch_npu.npu_sparse_flash_attention"


@replays("SparseFlashAttention", npu=_SPARSE_FLASH_ATTENTION)
def test_sparse_flash_attention(row, replay):
    """Replays attention over the keys of an index.

    Slots: queries (T, N, D), keys and values in pages (blocks, block size, 1, D), indices (T, 1, K), block table,
    two lengths, and the rope parts of queries and keys.
    """
    expect_slots(row, range(9))
    query, cache, values, indices, _, _, _, query_rope, key_rope = (row.shape(slot) for slot in range(9))
    row.expect(
        len(query) == 3
        and (cache[2:], values) == ((1, query[-1]), cache)
        and (len(indices), indices[:2]) == (3, (query[0], 1))
        and (query_rope[:-1], key_rope[:-1], query_rope[-1]) == (query[:-1], cache[:-1], key_rope[-1]),
        INPUT_SHAPES,
        "slot 0 must be (tokens, heads, D), slots 1 and 2 (blocks, block size, 1, D), slot 3 (tokens, 1, K), and "
        "slots 7 and 8 (rope) like slots 0 and 1 with another last axis",
        "correct their shapes; other layouts are not replayed",
    )
    queries, keys, table = _sequences(row, query, cache, table_slot=4, length_slots=(5, 6))
    seen = [kv - own + i + 1 for own, kv in zip(queries, keys, strict=True) for i in range(own)]
    # One cache holds keys and values, as in absorbed latent attention.
    key = row.tensor(1, *RANGE)
    replay(
        impl.sparse_flash_attention,
        row.tensor(0, *RANGE),
        key,
        key,
        spread_positions(row, indices, seen),
        1 / math.sqrt(query[-1] + query_rope[-1]),
        block_table=table,
        actual_seq_lengths_query=lengths_tensor(row, list(accumulate(queries)), host=False),
        actual_seq_lengths_kv=lengths_tensor(row, keys, host=False),
        query_rope=row.tensor(7, *RANGE),
        key_rope=row.tensor(8, *RANGE),
        sparse_block_size=1,
        layout_query="TND",
        layout_kv="PA_BSND",
        sparse_mode=3,
        attention_mode=2,
        output_slots=[0],
        expected=formulas.sparse_flash_attention,
    )


def _sequences(row, query, cache, *, table_slot, length_slots):
    """Returns the lengths of queries and of keys of each sequence, and the block table."""
    table = row.shape(table_slot)
    row.expect(len(table) == 2 and table[0], INPUT_SHAPES, f"slot {table_slot} must be a table (sequences, blocks)")
    for slot in length_slots:
        row.expect_shape(slot, table[:1], meaning="lengths")
    row.expect(
        query[0] >= table[0] and 0 not in cache[:2],
        INPUT_SHAPES,
        "slot 0 has fewer queries than sequences, or slot 1 no pages",
    )
    queries = split_evenly(query[0], table[0])
    if table[0] > 1:
        row.assume(f"{query[0]} queries are dealt out evenly to {table[0]} sequences")
    keys = assign_pages(row, table, cache[0], cache[1])
    used = [math.ceil(length / cache[1]) for length in keys]
    row.expect(
        len(keys) == table[0]
        and max(used) <= table[1]
        and not any(kv < own for own, kv in zip(queries, keys, strict=True)),
        INPUT_SHAPES,
        f"sequences of {min(keys)} keys or more do not fit {queries[0]} queries and the block table "
        f"(slot {table_slot})",
        "correct the shapes, or the recorded lengths",
    )
    return queries, keys, row.block_table(table, used, cache[0])
