"""Attention, packed and paged, absorbed latent in decoding, over chosen keys; rotary embeddings and writes to caches.

LightningIndexer is not here: the kernel that chooses the keys holds 4096 candidates of a query and checks no bound.
Rotations write new tensors: with `inplace=True` a thread may read a feature that another one has overwritten.
"""

from __future__ import annotations

from typing import Any

import flag_gems
import torch
from torch import Tensor

from opatlas import Prepared, implements

from .._calls import (
    HALF,
    HEADS,
    Attention,
    axis_of_heads,
    differences,
    int32,
    pairs_in_halves,
    rows_of_tokens,
    takes,
    tokens_by_heads,
)
from . import SUPPORT, expect, expect_dtype

_LARGEST_HEAD = 256
#: The parts of a latent head, and the numbers of heads, that flash_mla and flash_mla_sparse_fwd are written for.
_LATENT, _ROPE = 512, 64
_SPARSE_HEADS = (64, 128)


@implements("FusedInferAttentionScore")
@takes(Attention)
def fused_infer_attention_score(call: Attention) -> Prepared:
    query, key, value, table, kv_heads = call.query, call.key, call.value, call.block_table, call.num_key_value_heads
    expect_dtype(HALF, query=query)
    if call.query_rope is not None and call.key_rope is not None:
        expect(table is not None, "keys with a rope part that are not in pages", "flash_mla with pages")
        expect(key is value, "values of their own with a rope part", "keys that are the values too")
        expect(kv_heads == 1, f"{kv_heads} latent heads", "one")
        assert table is not None
        return _latent(call, call.query_rope, call.key_rope, table)
    size = query.shape[-1]
    expect(key.shape == value.shape, f"keys {tuple(key.shape)} and values {tuple(value.shape)}", "equal shapes")
    expect(size <= _LARGEST_HEAD and size % 8 == 0, f"head size {size}", f"multiples of 8 up to {_LARGEST_HEAD}")
    starts = int32(call.query_starts, query.device)
    of_keys: dict[str, Any]
    if table is None:
        of_keys = {"cu_seqlens_k": int32([0, *call.actual_seq_lengths_kv], query.device)}
        lengths = differences(call.actual_seq_lengths_kv)
    else:
        key, value = (_pages(cache, kv_heads, size) for cache in (key, value))
        lengths = list(call.actual_seq_lengths_kv)
        of_keys = {"seqused_k": int32(lengths, query.device), "block_table": table}
    longest, groups = max(differences(call.query_starts[1:])), call.num_heads // kv_heads
    how = {"softmax_scale": call.scale, "causal": call.causal, "return_softmax_lse": call.softmax_lse_flag, **of_keys}

    def results(found: Any) -> tuple[Tensor, Tensor | None]:
        if not call.softmax_lse_flag:
            return found, None
        out, sums = found
        if longest == 1 and groups > 1:
            # The groups of heads took the place of the queries: (key heads, tokens, groups).
            sums = sums.reshape(kv_heads, -1, groups).transpose(1, 2).reshape(call.num_heads, -1)
        return out, sums.mT.unsqueeze(-1)

    return Prepared(
        lambda: flag_gems.flash_attn_varlen_func(query, key, value, longest, starts, max(lengths), **how),
        results=results,
        converted=("log-sum-exp to (T, N, 1)",) if call.softmax_lse_flag else (),
    )


def _latent(call: Attention, q_rope: Tensor, rope_cache: Tensor, table: Tensor) -> Prepared:
    """Calls flash_mla, whose grid has one query for each sequence, with a scale of 1 / sqrt(576)."""
    q, block_size, lengths = call.query, call.block_size, call.actual_seq_lengths_kv
    batch, heads, queries, latent = q.shape
    expect(queries == 1, f"{queries} queries of a sequence", "flash_mla with one query")
    width = _expect_latent_heads(latent, q_rope.shape[-1])
    both = torch.cat([q, q_rope], dim=-1).transpose(1, 2).contiguous()
    pages = [part.reshape(-1, block_size, 1, part.shape[-1]) for part in (call.key, rope_cache)]
    joint, used, longest = torch.cat(pages, dim=-1), int32(lengths, q.device), max(lengths)
    return Prepared(
        lambda: flag_gems.flash_mla(
            both, table, joint, longest, block_size, batch, 1, used, heads, 1, width, latent, True
        ),
        results=lambda out: (out.permute(2, 0, 1, 3), None),
        converted=("queries and their rope part joined", "caches joined", "result to (N, B, S, D)"),
    )


@implements("SparseFlashAttention")
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
    **_unused: Any,
) -> Prepared:
    heads = query.shape[1]
    expect_dtype((torch.bfloat16,), query=query)
    expect(heads in _SPARSE_HEADS, f"{heads} heads", " or ".join(map(str, _SPARSE_HEADS)))
    width = _expect_latent_heads(query.shape[-1], query_rope.shape[-1])
    block_size, tokens = key.shape[1], torch.arange(len(query), device=query.device)
    ends = actual_seq_lengths_query
    owner = torch.searchsorted(ends, tokens.to(ends.dtype), right=True)
    chosen = sparse_indices[:, 0].long()
    blocks = block_table[owner].long().gather(1, chosen.clamp(min=0) // block_size)
    flat = (blocks * block_size + chosen % block_size).masked_fill(chosen < 0, -1).int().unsqueeze(1)
    q = torch.cat([query, query_rope], dim=-1)
    kv = torch.cat([key, key_rope], dim=-1).view(-1, 1, width)
    return Prepared(
        lambda: flag_gems.flash_mla_sparse_fwd(q, kv, flat, scale_value),
        results=lambda found: (found[0], None, None),
        converted=("queries and their rope part joined", "caches joined", "keys of the index to places in the cache"),
    )


def _expect_latent_heads(latent: int, rope: int) -> int:
    """Returns the width of a latent head with its rope part."""
    expect((latent, rope) == (_LATENT, _ROPE), f"heads of {latent} and {rope}", f"heads of {_LATENT} and {_ROPE}")
    return latent + rope


def _pages(cache: Tensor, heads: int, size: int) -> Tensor:
    """Returns a view (blocks, block size, heads, D) of a cache (blocks, block size, heads x D) or with heads first."""
    if cache.dim() == 3:
        return cache.view(*cache.shape[:2], heads, size)
    expect(heads == 1, f"a cache with {heads} heads before the tokens of a block", "the tokens before the heads")
    return cache.transpose(1, 2)


@implements("ApplyRotaryPosEmb")
def apply_rotary_pos_emb(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *, layout: str) -> Prepared:
    heads = HEADS[layout]
    q, k = (tokens_by_heads(x, heads, SUPPORT) for x in (query, key))
    tables = _angles(query, cos, sin, heads)
    return Prepared(
        lambda: flag_gems.apply_rotary_pos_emb(q, k, *tables),
        results=lambda turned: tuple(_as_row(y, x, heads) for y, x in zip(turned, (query, key), strict=True)),
    )


@implements("RotaryPositionEmbedding")
def rotary_mul(x: Tensor, cos: Tensor, sin: Tensor) -> Prepared:
    return _one_tensor(x, cos, sin, adjacent=False)


@implements("InterleaveRope")
def interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Prepared:
    """The features of a pair stay side by side; the row has them half a head apart."""
    return _one_tensor(x, cos, sin, adjacent=True)


@implements("_triton_rope")
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, table: Tensor, head_size: int, rotary_size: int, is_neox: bool
) -> Prepared:
    expect(rotary_size == head_size, f"{rotary_size} rotated features of {head_size}", "rotations of whole heads")
    q, k = (x.view(len(positions), -1, head_size) for x in (query, key))
    cos, sin = table.chunk(2, -1)
    return Prepared(
        lambda: flag_gems.apply_rotary_pos_emb(q, k, cos, sin, positions, not is_neox),
        results=lambda turned: (turned[0].view_as(query), turned[1].view_as(key)),
    )


@implements("ReshapeAndCacheNdKernel")
def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_indices: Tensor
) -> Prepared:
    for name, first, second in (
        ("shapes", tuple(key.shape), tuple(value.shape)),
        ("dtypes", key.dtype, value.dtype),
    ):
        expect(first == second, f"{name} {first} and {second}", f"keys and values of equal {name}")
    places, one = slot_indices.long(), torch.ones((), device=key.device)
    return Prepared(
        lambda: flag_gems.reshape_and_cache_flash(key, value, key_cache, value_cache, places, "auto", one, one),
        converted=() if slot_indices.dtype is torch.int64 else ("places to INT64",),
    )


def _one_tensor(x: Tensor, cos: Tensor, sin: Tensor, *, adjacent: bool) -> Prepared:
    """Rotates one tensor: its last head serves as the key, which the kernel requires."""
    heads = axis_of_heads(x, cos, SUPPORT)
    tokens = tokens_by_heads(x, heads, SUPPORT)
    q, k, tables = tokens[:, :-1], tokens[:, -1:], _angles(x, cos, sin, heads)

    def results(turned: Any) -> Tensor:
        y = torch.cat(turned, dim=1)
        return _as_row(pairs_in_halves(y) if adjacent else y, x, heads)

    return Prepared(
        lambda: flag_gems.apply_rotary_pos_emb(q, k, *tables, adjacent),
        results=results,
        converted=("heads of the result put together", *["pairs of the result to halves of a head"][: int(adjacent)]),
    )


def _as_row(y: Tensor, x: Tensor, heads: int) -> Tensor:
    """Returns y (tokens, heads, D) in the shape of x."""
    return y.reshape(x.movedim(heads, -2).shape).movedim(-2, heads)


def _angles(x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """Returns tables (rows, D / 2) of cosines and sines, and the row of each token of x."""
    rows, width = rows_of_tokens(x, cos, heads, SUPPORT, torch.int32), cos.shape[-1]
    first, second = (angles.view(-1, width)[:, : width // 2] for angles in (cos, sin))
    return first, second, rows
