"""Sparse attention over a paged cache."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .._layouts import differences
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
    layout_query: str,
    layout_key: str,
    sparse_count: int,
    sparse_mode: int,
    return_value: bool = False,
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
    actual_seq_lengths_kv: Tensor,
    query_rope: Tensor,
    key_rope: Tensor,
    sparse_block_size: int,
    layout_query: str,
    layout_kv: str,
    sparse_mode: int,
    attention_mode: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns attention of (T, N, D) queries over the keys in `sparse_indices` (T, 1, K); -1 means no key.

    Keys are in pages (blocks, block size, 1, D); without their rope part they are the values. The second and third
    result, statistics for training, are empty.
    """
    tokens, width = query.shape[0], query.shape[-1]
    block_size = key.shape[1]
    everything = torch.cat([query, query_rope], dim=-1)
    of_token = torch.searchsorted(actual_seq_lengths_query, torch.arange(tokens, device=query.device), right=True)
    out = torch.empty_like(query)
    step = max(1, _AT_A_TIME // (sparse_indices.shape[-1] * everything.shape[-1]))
    for first in range(0, tokens, step):
        own = slice(first, first + step)
        chosen = sparse_indices[own, 0].long()
        seen = chosen >= 0
        chosen = chosen.clamp_(min=0)
        block = block_table[of_token[own]].gather(1, chosen // block_size).long()
        offset = chosen % block_size
        keys = torch.cat([key[block, offset], key_rope[block, offset]], dim=-1).transpose(1, 2)
        # Heads share the keys, so they count as queries of one head.
        result = functional.scaled_dot_product_attention(
            everything[own, None], keys, keys, attn_mask=seen[:, None, None], scale=scale_value
        )
        out[own] = result[:, 0, :, :width]
    return out, query.new_empty(0), query.new_empty(0)
