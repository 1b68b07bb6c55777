"""Attention over the keys, or blocks of keys, that an index chooses in pages."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from .. import _calls as calls
from .attention import attend_with_lse, length_batches, pages, stretches
from .matmul import needs_float32

#: Elements that are computed at a time: 128 MiB in half precision.
_AT_A_TIME = 1 << 26
#: Keys of a block of MiniMax-M3.
MSA_BLOCK = 128


@calls.takes
def lightning_indexer(call: calls.LightningIndexer) -> tuple[Tensor, Tensor]:
    """Maps (T, N, D), (blocks, block size, 1, D), (T, N) to the best `sparse_count` keys of each query, (T, 1, count).

    The keys are int32, the best first, -1 where a query sees fewer keys. The scores are empty unless requested.
    """
    query, key, count, table = call.query, call.key, call.sparse_count, call.block_table
    ends, keys = call.actual_seq_lengths_query.tolist(), call.actual_seq_lengths_key.tolist()
    tokens, heads, _ = query.shape
    multiplied = torch.float32 if needs_float32(query) else query.dtype
    found = torch.full((tokens, 1, count), -1, dtype=torch.int32, device=query.device)
    scores = torch.full((tokens if call.return_value else 0, 1, count), -math.inf, device=query.device)
    for own, length, members in length_batches(calls.differences(ends), keys, key.shape[-1]):
        pages_of = table[members, : math.ceil(length / key.shape[1])].long()
        stored = pages(key.flatten(2), pages_of, length, 1)[:, 0].mT.to(multiplied)
        step = max(1, _AT_A_TIME // (len(members) * heads * length))
        for first in range(0, own, step):
            most = min(step, own - first)
            rows = stretches([ends[i] - own + first for i in members], most, query.device)
            products = torch.matmul(query[rows].flatten(1, 2).to(multiplied), stored).relu_()
            products = products.unflatten(1, (most, heads))
            total = torch.matmul(call.weights[rows][:, :, None].float(), products.float())[:, :, 0]
            visible = torch.ones(most, length, dtype=torch.bool, device=query.device).tril_(length - own + first)
            best, at = total.masked_fill_(~visible, -math.inf).topk(min(count, length), dim=-1)
            found[rows, 0, : at.shape[-1]] = at.to(torch.int32).masked_fill_(best == -math.inf, -1)
            if call.return_value:
                scores[rows, 0, : at.shape[-1]] = best
    return found, scores.to(query.dtype) if call.return_value else query.new_empty(0)


@calls.takes
def sparse_flash_attention(call: calls.SparseFlashAttention) -> tuple[Tensor, Tensor, Tensor]:
    """Returns attention of (T, N, D) queries over the keys in `sparse_indices` (T, 1, K); -1 means no key.

    Keys are in pages (blocks, block size, 1, D); without their rope part they are the values. The second and third
    result, statistics for training, are empty.
    """
    query, key = call.query, call.key
    tokens = torch.arange(len(query), device=query.device)
    table = call.block_table[torch.searchsorted(call.actual_seq_lengths_query, tokens, right=True)]
    everything = torch.cat([query, call.query_rope], dim=-1)
    out = _attend_chosen(everything, (key, call.key_rope), key, call.sparse_indices.long(), table, call.scale_value)
    return out, query.new_empty(0), query.new_empty(0)


def _attend_chosen(
    q: Tensor, keys: tuple[Tensor, ...], values: Tensor, chosen: Tensor, table: Tensor, scale: float
) -> Tensor:
    """Returns attention of queries (T, N, D) over tokens in pages, (T, H, K), -1 for none; `table` has a line for each.

    The parts of keys, and values, are (blocks, block size, H, D). Values that are a part of the keys come first there.
    """
    size, heads = values.shape[1:3]
    out = q.new_empty(*q.shape[:2], values.shape[-1])
    step = max(1, _AT_A_TIME // (chosen[0].numel() * q.shape[-1]))
    for first in range(0, len(q), step):
        own = slice(first, first + step)
        at = chosen[own].clamp(min=0)
        page = table[own].gather(1, (at // size).flatten(1)).view(at.shape).long()
        places = (page, at % size, torch.arange(heads, device=q.device)[:, None])
        k = torch.cat([part[places] for part in keys], dim=-1)
        v = k if values is keys[0] else values[places]
        # Heads that share the keys count as queries of one head.
        grouped, seen = q[own].unflatten(1, (heads, -1)), (chosen[own] >= 0)[:, :, None]
        result = functional.scaled_dot_product_attention(grouped, k, v, attn_mask=seen, scale=scale)
        out[own] = result.flatten(1, 2)[..., : values.shape[-1]]
    return out


@calls.takes
def sparse_attention_score(call: calls.SparseAttentionScore) -> Tensor:
    """Returns attention of (T, N, D) over the blocks of `select_idx` (H, T, K), up to the query's own key."""
    own = call.actual_seq_lengths.long()
    of_token = torch.arange(len(own), device=own.device).repeat_interleave(own, output_size=len(call.query))
    last = torch.arange(len(call.query), device=own.device) + (call.actual_seq_lengths_kv - own.cumsum(0))[of_token]
    chosen = _tokens_of_blocks(call.select_idx.transpose(0, 1), call.block_size, last)
    return _attend_chosen(call.query, (call.key,), call.value, chosen, call.block_table[of_token], call.scale_value)


def index_block_scores(query: Tensor, key: Tensor, block_table: Tensor, lengths: Tensor) -> Tensor:
    """Maps (T, H, D), (blocks, size, D) to the best product with a key of each block, (H, T, blocks) in float32.

    The block of the query itself has inf, later ones -inf. Sequences have equally many queries, their last tokens.
    """
    sequences, blocks = block_table.shape
    size, own = key.shape[1], len(query) // sequences
    last = (lengths - own)[:, None] + torch.arange(own, device=query.device)
    best = query.new_empty(sequences, own, query.shape[1], blocks, dtype=torch.float32)
    for sequence, (q, table) in enumerate(zip(query.unflatten(0, (sequences, own)), block_table.long(), strict=True)):
        products = torch.matmul(q.float(), key[table].flatten(0, 1).float().mT)
        hidden = torch.arange(blocks * size, device=query.device) > last[sequence][:, None]
        products.masked_fill_(hidden[:, None], -math.inf)
        best[sequence] = products.unflatten(-1, (blocks, size)).amax(dim=-1)
    at = (last // size)[..., None, None].expand(*best.shape[:3], 1).long()
    return best.scatter_(-1, at, math.inf).flatten(0, 1).transpose(0, 1).contiguous()


def choose_blocks(scores: Tensor, lengths: Tensor, count: int) -> Tensor:
    """Maps (H, T, blocks) to the `count` blocks of each query with the largest ones, the best first, in int32.

    Blocks after the query's own do not count; -1 stands where there are fewer. Sequences are as for the scores.
    """
    own, blocks = scores.shape[1] // len(lengths), torch.arange(scores.shape[-1], device=scores.device)
    last = ((lengths - own)[:, None] + torch.arange(own, device=scores.device)).flatten() // MSA_BLOCK
    best, at = scores.masked_fill(blocks > last[:, None], -math.inf).topk(min(count, len(blocks)), dim=-1)
    found = at.to(torch.int32).masked_fill_(best == -math.inf, -1)
    return functional.pad(found, (0, count - found.shape[-1]), value=-1)


@calls.takes
def nsa_select_attention(call: calls.NsaSelectedInfer) -> Tensor:
    """Returns attention of a query (B, N, D) of each sequence over the blocks of `topk_indices` (B, H, K)."""
    key, value = (x.unflatten(-1, (call.key_value_head_num, -1)) for x in (call.key, call.value))
    last = torch.tensor(call.actual_seq_kvlen, device=call.query.device) - 1
    chosen = _tokens_of_blocks(call.topk_indices, call.select_block_size, last)
    return _attend_chosen(call.query, (key,), value, chosen, call.block_table, call.scale_value)


@calls.takes
def nsa_train_attention(call: calls.NsaSelected) -> tuple[Tensor, Tensor, Tensor]:
    """Returns attention of (T, N, D) over the blocks of `topk_indices` (T, H, K), and statistics (T, N, 8).

    These are as of `flash_attention_score`.
    """
    query, key, value = call.query, call.key, call.value
    owner = [i for i, own in enumerate(calls.differences(call.actual_seq_qlen)) for _ in range(own)]
    first = torch.tensor([0, *call.actual_seq_kvlen], device=query.device)[owner]
    chosen = _tokens_of_blocks(call.topk_indices, call.select_block_size, torch.full_like(first, len(key)))
    chosen += first[:, None, None]
    heads, outs, sums = torch.arange(key.shape[1], device=query.device)[:, None], [], []
    step = max(1, _AT_A_TIME // (chosen[0].numel() * query.shape[-1]))
    for own, at in zip(query.split(step), chosen.split(step), strict=True):
        grouped = own.unflatten(1, (key.shape[1], -1))
        out, lse = attend_with_lse(grouped, key[at, heads], value[at, heads], scale=call.scale_value, causal=False)
        outs.append(out.flatten(1, 2))
        sums.append(lse.flatten(1))
    highest = torch.cat(sums)[..., None].expand(-1, -1, 8).contiguous()
    return torch.cat(outs), highest, torch.ones_like(highest)


@calls.takes
def nsa_compress_attention(call: calls.NsaCompressAttention) -> tuple[Tensor, Tensor]:
    """Returns attention of a query (B, N, D) of each sequence over sums of keys in pages, and the best blocks.

    The first and the last two blocks are always chosen.
    """
    kv_heads, block = call.key_value_head_num, call.select_block_size
    size, stride = call.compress_block_size, call.compress_stride
    key, value = (x.unflatten(-1, (kv_heads, -1)) for x in (call.key, call.value))
    ratio, before, outs, best = block // stride, size // stride, [], []
    for q, table, length in zip(call.query, call.block_table.long(), call.actual_cmp_seq_kvlen, strict=True):
        k, v = (x[table].flatten(0, 1)[:length].transpose(0, 1).float() for x in (key, value))
        shares = torch.softmax(torch.matmul(q.unflatten(0, (kv_heads, -1)).float(), k.mT) * call.scale_value, dim=-1)
        outs.append(torch.matmul(shares, v).flatten(0, 1).to(q.dtype))
        blocks = -(-((length - 1) * stride + size) // block)
        padded = functional.pad(shares.sum(dim=1), (before - 1, ratio * blocks + 1 - length))
        scores = padded.unfold(-1, before, 1).sum(dim=-1)[:, 1:].unfold(-1, ratio, ratio).sum(dim=-1)
        scores[:, 0] = scores[:, -2:] = math.inf
        best.append(scores.topk(call.select_block_count, dim=-1).indices)
    return torch.stack(outs), torch.stack(best).int()


@calls.takes
def nsa_compress_infer(call: calls.NsaCompressInfer) -> Tensor:
    """Stores weighed sums of the last tokens, of sequences whose block is full, in `cache` (places, N, D)."""
    x, size, page = call.input, call.compress_block_size, call.page_block_size
    lengths = torch.tensor(call.actual_seq_len, device=x.device)
    full = ((lengths - size) % call.compress_stride == 0) & (lengths >= size)
    at = (lengths - size)[full, None] + torch.arange(size, device=x.device)
    tokens = x[call.block_table[full].long().gather(1, at // page), at % page]
    call.cache[call.slot_mapping[full].long()] = torch.einsum("blnd,ln->bnd", tokens, call.weight)
    return call.cache


def _tokens_of_blocks(blocks: Tensor, size: int, last: Tensor) -> Tensor:
    """Returns the tokens of blocks (T, H, K) up to the last one of each query, (T, H, K x size); -1 elsewhere."""
    tokens = (blocks.long()[..., None] * size + torch.arange(size, device=blocks.device)).flatten(2)
    return tokens.masked_fill((tokens < 0) | (tokens > last[:, None, None]), -1)


def nsa_compress(x: Tensor, weight: Tensor, size: int, stride: int, *, actual_seq_len: Sequence[int]) -> Tensor:
    """Returns sums of blocks of tokens (T, N, D) of each sequence, weighed by (size, N), a block each `stride`."""
    blocks = [own.unfold(0, size, stride) for own in x.split(calls.differences(actual_seq_len)) if len(own) >= size]
    return torch.einsum("bndl,ln->bnd", torch.cat(blocks), weight)
