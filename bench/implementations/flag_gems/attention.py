"""Attention: packed and paged, absorbed latent attention in decoding, and attention over chosen keys.

LightningIndexer is not here: the kernel that chooses the keys holds 4096 candidates of a query and checks no bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flag_gems
import torch

from opatlas import Prepared, implements

from .._layouts import int32
from .common import HALF, expect, expect_dtype

_LARGEST_HEAD = 256
#: The parts of a latent head, and the numbers of heads, that flash_mla and flash_mla_sparse_fwd are written for.
_LATENT, _ROPE = 512, 64
_SPARSE_HEADS = (64, 128)


@implements("FusedInferAttentionScore")
def fused_infer_attention_score(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    atten_mask: torch.Tensor | None,
    actual_seq_lengths: Sequence[int] | None,
    actual_seq_lengths_kv: Sequence[int],
    block_table: torch.Tensor | None,
    query_rope: torch.Tensor | None,
    key_rope: torch.Tensor | None,
    num_heads: int,
    scale: float,
    input_layout: str,
    num_key_value_heads: int,
    sparse_mode: int,
    block_size: int,
    softmax_lse_flag: bool,
) -> Prepared:
    expect_dtype(HALF, query=query)
    if query_rope is not None and key_rope is not None:
        expect(block_table is not None, "keys with a rope part that are not in pages", "flash_mla with pages")
        expect(key is value, "values of their own with a rope part", "keys that are the values too")
        expect(num_key_value_heads == 1, f"{num_key_value_heads} latent heads", "one")
        assert block_table is not None
        return _latent(query, query_rope, key, key_rope, block_table, actual_seq_lengths_kv, block_size)
    size = query.shape[-1]
    expect(key.shape == value.shape, f"keys {tuple(key.shape)} and values {tuple(value.shape)}", "equal shapes")
    expect(size <= _LARGEST_HEAD and size % 8 == 0, f"head size {size}", f"multiples of 8 up to {_LARGEST_HEAD}")
    assert actual_seq_lengths is not None
    starts = int32([0, *actual_seq_lengths], query.device)
    of_keys: dict[str, Any]
    if block_table is None:
        of_keys = {"cu_seqlens_k": int32([0, *actual_seq_lengths_kv], query.device)}
        lengths = _differences(actual_seq_lengths_kv)
    else:
        key, value = (_pages(cache, num_key_value_heads, size) for cache in (key, value))
        of_keys = {"seqused_k": int32(actual_seq_lengths_kv, query.device), "block_table": block_table}
        lengths = list(actual_seq_lengths_kv)
    longest, groups = max(_differences(actual_seq_lengths)), num_heads // num_key_value_heads

    def call() -> Any:
        return flag_gems.flash_attn_varlen_func(
            query,
            key,
            value,
            longest,
            starts,
            max(lengths),
            softmax_scale=scale,
            causal=sparse_mode == 3,
            return_softmax_lse=softmax_lse_flag,
            **of_keys,
        )

    def results(found: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
        if not softmax_lse_flag:
            return found, None
        out, sums = found
        if longest == 1 and groups > 1:
            # The groups of heads took the place of the queries: (key heads, tokens, groups).
            sums = sums.reshape(num_key_value_heads, -1, groups).transpose(1, 2).reshape(num_heads, -1)
        return out, sums.mT.unsqueeze(-1)

    return Prepared(call, results=results, converted=("log-sum-exp to (T, N, 1)",) if softmax_lse_flag else ())


def _latent(
    q: torch.Tensor,
    q_rope: torch.Tensor,
    cache: torch.Tensor,
    rope_cache: torch.Tensor,
    table: torch.Tensor,
    lengths: Sequence[int],
    block_size: int,
) -> Prepared:
    """Calls flash_mla, whose grid has one query for each sequence, with a scale of 1 / sqrt(576)."""
    batch, heads, queries, latent = q.shape
    sizes = (latent, q_rope.shape[-1])
    expect(queries == 1, f"{queries} queries of a sequence", "flash_mla with one query")
    expect(sizes == (_LATENT, _ROPE), f"heads of {sizes[0]} and {sizes[1]}", f"heads of {_LATENT} and {_ROPE}")
    width = latent + sizes[1]
    both = torch.cat([q, q_rope], dim=-1).transpose(1, 2).contiguous()
    pages = [part.reshape(-1, block_size, 1, part.shape[-1]) for part in (cache, rope_cache)]
    joint, used = torch.cat(pages, dim=-1), int32(lengths, q.device)
    longest = max(lengths)
    return Prepared(
        lambda: flag_gems.flash_mla(
            both, table, joint, longest, block_size, batch, 1, used, heads, 1, width, latent, True
        ),
        results=lambda out: (out.permute(2, 0, 1, 3), None),
        converted=("queries and their rope part joined", "caches joined", "result to (N, B, S, D)"),
    )


@implements("SparseFlashAttention")
def sparse_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sparse_indices: torch.Tensor,
    scale_value: float,
    *,
    block_table: torch.Tensor,
    actual_seq_lengths_query: torch.Tensor,
    query_rope: torch.Tensor,
    key_rope: torch.Tensor,
    **_unused: Any,
) -> Prepared:
    heads, sizes = query.shape[1], (query.shape[-1], query_rope.shape[-1])
    expect_dtype((torch.bfloat16,), query=query)
    expect(heads in _SPARSE_HEADS, f"{heads} heads", " or ".join(map(str, _SPARSE_HEADS)))
    expect(sizes == (_LATENT, _ROPE), f"heads of {sizes[0]} and {sizes[1]}", f"heads of {_LATENT} and {_ROPE}")
    block_size, tokens = key.shape[1], torch.arange(len(query), device=query.device)
    ends = actual_seq_lengths_query
    owner = torch.searchsorted(ends, tokens.to(ends.dtype), right=True)
    chosen = sparse_indices[:, 0].long()
    blocks = block_table[owner].long().gather(1, chosen.clamp(min=0) // block_size)
    flat = (blocks * block_size + chosen % block_size).masked_fill(chosen < 0, -1).int().unsqueeze(1)
    q = torch.cat([query, query_rope], dim=-1)
    kv = torch.cat([key, key_rope], dim=-1).view(-1, 1, sum(sizes))
    return Prepared(
        lambda: flag_gems.flash_mla_sparse_fwd(q, kv, flat, scale_value),
        results=lambda found: (found[0], None, None),
        converted=("queries and their rope part joined", "caches joined", "keys of the index to places in the cache"),
    )


def _pages(cache: torch.Tensor, heads: int, size: int) -> torch.Tensor:
    """Returns a view (blocks, block size, heads, D) of a cache (blocks, block size, heads x D) or with heads first."""
    if cache.dim() == 3:
        return cache.view(*cache.shape[:2], heads, size)
    expect(heads == 1, f"a cache with {heads} heads before the tokens of a block", "the tokens before the heads")
    return cache.transpose(1, 2)


def _differences(ends: Sequence[int]) -> list[int]:
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
