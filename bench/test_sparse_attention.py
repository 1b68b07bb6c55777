"""Replays of attention over the keys, or blocks of keys, that an index chooses, and of what chooses them."""

from __future__ import annotations

import math
from itertools import accumulate

from opatlas.row.columns import INPUT_SHAPES, OUTPUT_SHAPES
from opatlas.run.inputs import attention as fia
from opatlas.run.registry import replays

from . import formulas
from .implementations import torch as impl


@replays("LightningIndexer", npu="torch_npu.npu_lightning_indexer")
def test_lightning_indexer(row, replay):
    """Checks the outputs keys of each query, perhaps their scores."""
    arguments, keywords = _indexer_call(row)
    with_values = len(row.output_slots) > 1 and len(row.output_slots[1].shape) > 1
    keywords |= {"return_value": with_values, "output_slots": [0, 1] if with_values else [0]}
    replay(impl.lightning_indexer, *arguments, **keywords, expected=formulas.lightning_indexer)


@replays("LightningIndexerVllm", npu="torch.ops._C_ascend.npu_lightning_indexer")
def test_lightning_indexer_vllm(row, replay, custom_opp):
    """Replays LightningIndexer without scores, the kernel of older versions of vllm-ascend."""
    arguments, keywords = _indexer_call(row)
    replay(impl.lightning_indexer, *arguments, **keywords, output_slots=[0], expected=formulas.lightning_indexer)


def _indexer_call(row):
    """Reads the slots queries (T, N, D), keys (blocks, block size, 1, D), weights (T, N), two lengths, block table."""
    row.expect_slots(range(6))
    tokens, _, _, *cache, count, blocks = row.sizes(
        "tokens,heads,width; pages,page_size,1,width; tokens,heads; sequences; sequences; sequences,blocks"
    )
    queries, keys, table = _sequences(row, tokens, cache, (count, blocks))
    return (row.tensor(0, *fia.RANGE), row.tensor(1, *fia.RANGE), row.tensor(2)), {
        "actual_seq_lengths_query": row.lengths(list(accumulate(queries)), host=False),
        "actual_seq_lengths_key": row.lengths(keys, host=False),
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
    row.expect_slots(range(9))
    tokens, _, width, *cache, _, count, blocks, rope = row.sizes(
        "tokens,heads,width; pages,page_size,1,width; pages,page_size,1,width; tokens,1,chosen; sequences,blocks"
        "; sequences; sequences; tokens,heads,rope; pages,page_size,1,rope"
    )
    queries, keys, table = _sequences(row, tokens, cache, (count, blocks))
    seen = [kv - own + i + 1 for own, kv in zip(queries, keys, strict=True) for i in range(own)]
    # One cache holds keys and values, as in absorbed latent attention.
    query, key, query_rope, key_rope = (row.tensor(slot, *fia.RANGE) for slot in (0, 1, 7, 8))
    call = {"actual_seq_lengths_query": row.lengths(list(accumulate(queries)), host=False), "block_table": table}
    call |= {"actual_seq_lengths_kv": row.lengths(keys, host=False), "query_rope": query_rope, "key_rope": key_rope}
    call |= {"sparse_block_size": 1, "layout_query": "TND", "layout_kv": "PA_BSND", "sparse_mode": 3}
    arguments = (query, key, key, row.spread_positions(row.shape(3), seen), 1 / math.sqrt(width + rope))
    call |= {"attention_mode": 2, "output_slots": [0], "expected": formulas.sparse_flash_attention}
    replay(impl.sparse_flash_attention, *arguments, **call)


@replays("SparseAttentionScore", npu="torch.ops._C_ascend.npu_sparse_attention_score")
def test_sparse_attention_score(row, replay, custom_opp):
    """Replays attention over blocks of keys that are chosen for each key head, as MiniMax-M3 has it.

    Slots: queries (T, N, D), keys and values in pages (blocks, block size, H, D), indices of pages (H, T, K), block
    table, how many of the indices count, two lengths.
    """
    row.expect_slots(range(8))
    tokens, heads, width, pages, size, kv_heads, chosen, *table = row.sizes(
        "tokens,heads,width; pages,page_size,kv_heads,width; pages,page_size,kv_heads,width; kv_heads,tokens,chosen"
        "; sequences,blocks; kv_heads,tokens; sequences; sequences"
    )
    row.expect(kv_heads and not heads % kv_heads, INPUT_SHAPES, "queries and keys do not match")
    queries, keys, blocks = _sequences(row, tokens, (pages, size), table)
    seen = [(kv - own + i) // size + 1 for own, kv in zip(queries, keys, strict=True) for i in range(own)]
    index = row.spread_positions((tokens, kv_heads, chosen), seen).transpose(0, 1).contiguous()
    call = {"select_num_idx": (index >= 0).sum(dim=-1, dtype=index.dtype), "num_key_value_heads": kv_heads}
    call |= {"actual_seq_lengths": row.lengths(queries, host=False), "scale_value": 1 / math.sqrt(width)}
    call |= {"actual_seq_lengths_kv": row.lengths(keys, host=False), "block_size": size, "top_k": chosen}
    tensors = (*(row.tensor(slot, *fia.RANGE) for slot in range(3)), index, blocks)
    replay(impl.sparse_attention_score, *tensors, **call, inner_precise=4, expected=formulas.sparse_attention_score)


@replays("_decode_index_score_kernel", npu="opatlas.bench.implementations.torch.index_block_scores")
def test_index_block_scores(row, replay):
    """Replays the scores by which MiniMax-M3 chooses blocks of keys; that of a query's own block is the largest.

    Slots: queries (T, H, D), keys in pages (blocks, block size, D), block table, lengths.
    """
    row.expect_inputs(4)
    layout = "tokens,heads,width; pages,page_size,width; sequences,blocks; sequences -> heads,tokens,blocks"
    tokens, _, _, *cache, sequences, blocks = row.sizes(layout)
    row.expect(sequences and not tokens % sequences, INPUT_SHAPES, "the sequences have unequally many queries")
    _, keys, table = _sequences(row, tokens, cache, (sequences, blocks))
    tensors = row.tensor(0, *fia.RANGE), row.tensor(1, *fia.RANGE), table, row.lengths(keys, host=False)
    replay(impl.index_block_scores, *tensors, expected=formulas.index_block_scores)


@replays("_topk_index_kernel", npu="opatlas.bench.implementations.torch.choose_blocks")
def test_choose_blocks(row, replay):
    """Replays the choice of blocks of keys (H, T, K), of which a query sees those up to its own.

    Slots: scores (H, T, blocks), lengths.
    """
    row.expect_inputs(2)
    _, tokens, blocks, sequences, *_, chosen = row.sizes("heads,tokens,blocks; sequences -> heads,tokens,chosen")
    row.expect(sequences and not tokens % sequences, INPUT_SHAPES, "the sequences have unequally many queries")
    row.assume(f"blocks of {impl.MSA_BLOCK} keys")
    _, keys, _ = _sequences(row, tokens, (sequences * blocks, impl.MSA_BLOCK), (sequences, blocks))
    scores, lengths = row.tensor(0, *fia.RANGE), row.lengths(keys, host=False)
    replay(impl.choose_blocks, scores, lengths, chosen, expected=formulas.choose_blocks)


#: Keys of a block that native sparse attention chooses, tokens of a sum, and from the first of one to that of the next.
_NSA_BLOCK, _NSA_SUM, _NSA_STRIDE = 64, 32, 16


@replays("NsaSelectedAttentionInfer", npu="torch_npu.npu_nsa_select_attention_infer")
def test_nsa_selected_attention(row, replay):
    """Replays native sparse attention over the chosen blocks of keys, in decode.

    Slots: a query (B, N, D) of each sequence, keys and values in pages (blocks, block size, H x D), indices of blocks
    (B, H, K); 5: block table; 6 and 7: lengths.
    """
    row.expect_slots((0, 1, 2, 3, 5), (6, 7))
    batch, heads, width, pages, size, of_keys, of_values, kv_heads, chosen, blocks = row.sizes(
        "batch,heads,width; pages,page_size,keys; pages,page_size,values; batch,kv_heads,chosen; ; batch,blocks"
    )
    fits = kv_heads and not heads % kv_heads and not of_values % kv_heads and not size % _NSA_BLOCK
    problem = f"queries and keys do not match, or pages are no blocks of {_NSA_BLOCK} keys"
    row.expect(fits and of_keys == kv_heads * width, INPUT_SHAPES, problem)
    row.assume(f"blocks of {_NSA_BLOCK} keys")
    _, keys, table = _sequences(row, batch, (pages, size), (batch, blocks))
    index = row.spread_positions(row.shape(3), [-(-kv // _NSA_BLOCK) for kv in keys])
    call = {"scale_value": 1 / math.sqrt(width), "head_num": heads, "key_value_head_num": kv_heads, "layout": "TND"}
    call |= {"select_block_size": _NSA_BLOCK, "select_block_count": chosen, "page_block_size": size}
    call |= {"actual_seq_qlen": [1] * batch, "actual_seq_kvlen": keys, "block_table": table}
    tensors = (*(row.tensor(slot, *fia.RANGE) for slot in range(3)), index)
    replay(impl.nsa_select_attention, *tensors, **call, expected=formulas.nsa_select_attention)


@replays("NsaCompress", npu="torch_npu.npu_nsa_compress")
def test_nsa_compress(row, replay):
    """Reads the slots keys or values (T, N, D), the weights of a block's tokens (size, N), perhaps lengths.

    How many tokens after a block the next one begins follows from the number of blocks, if all sequences are equal.
    """
    row.expect_slots(range(2), (2,))
    tokens, _, _, size, *_, blocks = row.sizes("tokens,heads,width; size,heads; ?*sequences -> blocks,heads,width")
    lengths = fia.split_evenly(tokens, max(math.prod(row.shape(2)), 1) if row.has(2) else 1)
    strides = (size // 2, size, *range(16, size, 16))
    fitting = [
        each for each in strides if each and sum(max(own - size, -each) // each + 1 for own in lengths) == blocks
    ]
    row.expect(fitting, OUTPUT_SHAPES, f"blocks of {size} tokens, of which none is skipped, are others")
    row.assume(f"{len(lengths)} sequences, with a block each {fitting[0]} tokens")
    ends, sizes = list(accumulate(lengths)), (size, fitting[0])
    tensors = (row.tensor(slot) for slot in range(2))
    replay(impl.nsa_compress, *tensors, *sizes, actual_seq_len=ends, expected=formulas.nsa_compress)


@replays("NsaSelectedAttention", npu="torch_npu.npu_nsa_select_attention")
def test_nsa_select_attention(row, replay):
    """Replays native sparse attention over the chosen blocks of keys, as training has it: no key of them is hidden.

    Slots: queries (T, N, D), keys, values, indices of blocks (T, H, K); 5 and 6: ends of sequences. Outputs: the
    statistics of a softmax (T, N, 8), and the attention.
    """
    row.expect_slots(range(4), (5, 6))
    layout = "tokens,heads,width; keys,kv_heads,width; keys,kv_heads,of_value; tokens,kv_heads,chosen"
    tokens, heads, width, keys, kv_heads, _, chosen = row.sizes(f"{layout}; ; ?*ends; ?*ends")[:7]
    count = max(math.prod(row.shape(5)), 1) if row.has(5) else 1
    blocks, rest = divmod(keys // count, _NSA_BLOCK)
    fits = kv_heads and not heads % kv_heads and not (tokens % count or keys % count or rest) and blocks >= chosen
    row.expect(fits, INPUT_SHAPES, f"heads do not match, or keys are no {chosen} blocks of {_NSA_BLOCK}")
    row.assume(f"{count} sequences of one length, blocks of {_NSA_BLOCK} keys")
    index, step = row.spread_positions(row.shape(3), [blocks] * tokens), tokens // count
    call = {"actual_seq_qlen": list(range(step, tokens + 1, step)), "output_slots": [2, 0, 1]}
    call |= {"actual_seq_kvlen": list(range(keys // count, keys + 1, keys // count))}
    tensors = (*(row.tensor(slot, *fia.RANGE) for slot in range(3)), index)
    sizes = (1 / math.sqrt(width), heads, _NSA_BLOCK, chosen)
    replay(impl.nsa_train_attention, *tensors, *sizes, **call, expected=formulas.nsa_train_attention)


@replays("NsaCompressAttentionInfer", npu="torch_npu.npu_nsa_compress_attention_infer")
def test_nsa_compress_attention(row, replay):
    """Replays native sparse attention over the sums of blocks, and the choice of blocks of keys, in decode.

    Slots: a query (B, N, D) of each sequence, sums of keys and of values in pages (blocks, block size, H x D); 4: block
    table; 5 to 7: lengths. Outputs: the attention, and the chosen blocks (B, H, K).
    """
    row.expect_slots((0, 1, 2, 4), (5, 6, 7))
    layout = "batch,heads,width; pages,page_size,keys; pages,page_size,values; ; batch,blocks"
    sizes = row.sizes(f"{layout} -> batch,heads,of_value; batch,kv_heads,chosen")
    batch, heads, width, pages, size, of_keys, _, blocks, _, kv_heads, chosen = sizes
    fits = kv_heads and not heads % kv_heads and of_keys == kv_heads * width
    row.expect(fits, INPUT_SHAPES, "queries and keys do not match")
    _, keys, table = _sequences(row, batch, (pages, size), (batch, blocks))
    enough = (min(keys) - 1) * _NSA_STRIDE + _NSA_SUM >= chosen * _NSA_BLOCK
    row.expect(enough, OUTPUT_SHAPES, f"{min(keys)} sums have no {chosen} blocks of {_NSA_BLOCK} keys")
    row.assume(f"sums of {_NSA_SUM} tokens each {_NSA_STRIDE}, blocks of {_NSA_BLOCK} keys")
    given = (1 / math.sqrt(width), heads, kv_heads, _NSA_BLOCK, chosen, size, _NSA_SUM, _NSA_STRIDE)
    tensors = (row.tensor(slot, *fia.RANGE) for slot in range(3))
    call = {"block_table": table, "actual_cmp_seq_kvlen": keys, "expected": formulas.nsa_compress_attention}
    replay(impl.nsa_compress_attention, *tensors, *given, **call)


@replays("NsaCompressWithCache", npu="torch_npu.npu_nsa_compress_infer")
def test_nsa_compress_with_cache(row, replay):
    """Reads the slots keys or values in pages (blocks, block size, N, D), weights (size, N), places, the cache of sums.

    4: lengths; 5: block table. The last tokens of each sequence complete a block.
    """
    row.expect_slots((0, 1, 2, 3, 5), (4,))
    layout = "pages,page_size,heads,width; size,heads; batch; places,heads,width; ?*lengths; batch,blocks"
    pages, page_size, _, _, size, batch, places, *_, blocks = row.sizes(layout)
    tokens = min(blocks, pages // max(batch, 1)) * page_size
    row.expect(tokens >= size, INPUT_SHAPES, f"the pages of a sequence have no {size} tokens")
    length = tokens - (tokens - size) % _NSA_STRIDE
    row.assume(f"{length} tokens of each sequence, the last of which complete a block, one each {_NSA_STRIDE}")
    table = row.block_table((batch, blocks), [math.ceil(length / page_size)] * batch, pages)
    sizes = (row.indices(2, places, distinct=True), size, _NSA_STRIDE, page_size)
    call = {"block_table": table, "actual_seq_len": [length] * batch, "cache": row.tensor(3), "mutates": ["cache"]}
    tensors = row.tensor(0), row.tensor(1)
    replay(impl.nsa_compress_infer, *tensors, *sizes, **call, output_slots=[0], expected=formulas.nsa_compress_infer)


def _sequences(row, tokens, cache, table):
    """Returns the lengths of queries and of keys of each sequence, and the block table.

    `cache`: the number of pages and their size; `table`: the number of sequences and of the blocks of each.
    """
    problem = "there are fewer queries than sequences, or no pages"
    row.expect(0 < table[0] <= tokens and all(cache), INPUT_SHAPES, problem)
    queries = fia.split_evenly(tokens, table[0])
    if table[0] > 1:
        row.assume(f"{tokens} queries are dealt out evenly to {table[0]} sequences")
    keys = fia.assign_pages(row, table, *cache)
    used = [math.ceil(length / cache[1]) for length in keys]
    fits = len(keys) == table[0] and max(used) <= table[1] and not any(map(int.__gt__, queries, keys))
    problem = f"sequences of {min(keys)} keys or more do not fit {queries[0]} queries and the block table"
    row.expect(fits, INPUT_SHAPES, problem, "correct the shapes, or the recorded lengths")
    return queries, keys, row.block_table(table, used, cache[0])
