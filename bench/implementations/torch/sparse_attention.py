"""Attention over the keys, or blocks of keys, that an index chooses in pages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .._calls import differences
from .attention import length_batches, pages, stretches
from .matmul import needs_float32

#: Elements that are computed at a time: 128 MiB in half precision.
_AT_A_TIME = 1 << 26


def lightning_indexer(
    query: Tensor,
    key: Tensor,
    weights: Tensor,
    *,
    actual_seq_lengths_query: Tensor,
    actual_seq_lengths_key: Tensor,
    block_table: Tensor,
    sparse_count: int,
    return_value: bool = False,
    **of_npu: Any,
) -> tuple[Tensor, Tensor]:
    """Maps (T, N, D), (blocks, block size, 1, D), (T, N) to the best `sparse_count` keys of each query, (T, 1, count).

    The keys are int32, the best first, -1 where a query sees fewer keys. The scores are empty unless requested.
    """
    ends, keys = actual_seq_lengths_query.tolist(), actual_seq_lengths_key.tolist()
    tokens, heads, _ = query.shape
    multiplied = torch.float32 if needs_float32(query) else query.dtype
    found = torch.full((tokens, 1, sparse_count), -1, dtype=torch.int32, device=query.device)
    scores = torch.full((tokens if return_value else 0, 1, sparse_count), -math.inf, device=query.device)
    for own, length, members in length_batches(differences(ends), keys, key.shape[-1]):
        table = block_table[members, : math.ceil(length / key.shape[1])].long()
        stored = pages(key.flatten(2), table, length, 1)[:, 0].mT.to(multiplied)
        step = max(1, _AT_A_TIME // (len(members) * heads * length))
        for first in range(0, own, step):
            count = min(step, own - first)
            rows = stretches([ends[i] - own + first for i in members], count, query.device)
            products = torch.matmul(query[rows].flatten(1, 2).to(multiplied), stored).relu_()
            products = products.unflatten(1, (count, heads))
            total = torch.matmul(weights[rows][:, :, None].float(), products.float())[:, :, 0]
            visible = torch.ones(count, length, dtype=torch.bool, device=query.device).tril_(length - own + first)
            best, at = total.masked_fill_(~visible, -math.inf).topk(min(sparse_count, length), dim=-1)
            found[rows, 0, : at.shape[-1]] = at.to(torch.int32).masked_fill_(best == -math.inf, -1)
            if return_value:
                scores[rows, 0, : at.shape[-1]] = best
    return found, scores.to(query.dtype) if return_value else query.new_empty(0)


def lightning_indexer_vllm(*arguments: Any, **keywords: Any) -> Tensor:
    """Returns the keys of `lightning_indexer`, without scores."""
    return lightning_indexer(*arguments, **keywords)[0]


def sparse_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sparse_indices: Tensor,
    scale_value: float,
    *,
    block_table: Tensor,
    actual_seq_lengths_query: Tensor,
    query_rope: Tensor,
    key_rope: Tensor,
    **of_npu: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns attention of (T, N, D) queries over the keys in `sparse_indices` (T, 1, K); -1 means no key.

    Keys are in pages (blocks, block size, 1, D); without their rope part they are the values. The second and third
    result, statistics for training, are empty.
    """
    tokens = torch.arange(len(query), device=query.device)
    table = block_table[torch.searchsorted(actual_seq_lengths_query, tokens, right=True)]
    everything = torch.cat([query, query_rope], dim=-1)
    out = _attend_chosen(everything, (key, key_rope), key, sparse_indices.long(), table, scale_value)
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


def sparse_attention_score(
    query: Tensor, key: Tensor, value: Tensor, select_idx: Tensor, block_table: Tensor, **call: Any
) -> Tensor:
    """Returns attention of (T, N, D) over the blocks of `select_idx` (H, T, K), up to the query's own key."""
    own = call["actual_seq_lengths"].long()
    of_token = torch.arange(len(own), device=own.device).repeat_interleave(own, output_size=len(query))
    last = torch.arange(len(query), device=own.device) + (call["actual_seq_lengths_kv"] - own.cumsum(0))[of_token]
    chosen = _tokens_of_blocks(select_idx.transpose(0, 1), call["block_size"], last)
    return _attend_chosen(query, (key,), value, chosen, block_table[of_token], call["scale_value"])


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


def nsa_select_attention(
    query: Tensor, key: Tensor, value: Tensor, topk_indices: Tensor, scale_value: float, *sizes: int, **call: Any
) -> Tensor:
    """Returns attention of a query (B, N, D) of each sequence over the blocks of `topk_indices` (B, H, K).

    Sizes: query heads, key heads, keys of a block, blocks, keys of a page.
    """
    key, value = (x.unflatten(-1, (sizes[1], -1)) for x in (key, value))
    last = torch.tensor(call["actual_seq_kvlen"], device=query.device) - 1
    chosen = _tokens_of_blocks(topk_indices, sizes[2], last)
    return _attend_chosen(query, (key,), value, chosen, call["block_table"], scale_value)


def _tokens_of_blocks(blocks: Tensor, size: int, last: Tensor) -> Tensor:
    """Returns the tokens of blocks (T, H, K) up to the last one of each query, (T, H, K x size); -1 elsewhere."""
    tokens = (blocks.long()[..., None] * size + torch.arange(size, device=blocks.device)).flatten(2)
    return tokens.masked_fill((tokens < 0) | (tokens > last[:, None, None]), -1)


def nsa_compress(x: Tensor, weight: Tensor, size: int, stride: int, *, actual_seq_len: Sequence[int]) -> Tensor:
    """Returns sums of blocks of tokens (T, N, D) of each sequence, weighed by (size, N), a block each `stride`."""
    blocks = [own.unfold(0, size, stride) for own in x.split(differences(actual_seq_len)) if len(own) >= size]
    return torch.einsum("bndl,ln->bnd", torch.cat(blocks), weight)
