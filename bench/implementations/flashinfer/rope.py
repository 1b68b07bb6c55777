"""Rotary position embeddings, and writes to paged caches (blocks, block size, heads, size)."""

from __future__ import annotations

from collections.abc import Sequence

import flashinfer
import torch
from torch import Tensor

from opatlas import Prepared, implements

from .._calls import HALF, launched
from .._layouts import HEADS, axis_of_heads, int32, pairs_in_halves, rows_of_tokens, table_of_pairs, tokens_by_heads
from . import HEAD_SIZES, SUPPORT, expect, expect_dtype, words

#: Threads of a block, which writes all heads of a token to a cache.
_MOST_THREADS = 1024
_TABLE = "cos and sin to a table in FLOAT"


@implements("ApplyRotaryPosEmb")
def apply_rotary_pos_emb(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, *, layout: str) -> Prepared:
    heads = HEADS[layout]
    q, k = (tokens_by_heads(x, heads, SUPPORT) for x in (query, key))
    return _rotated(*_angles(query, cos, sin, heads), q, k, converted=(_TABLE,))


@implements("RotaryPositionEmbedding")
def rotary_mul(x: Tensor, cos: Tensor, sin: Tensor) -> Prepared:
    """Works in place; the last head serves as the key, which the kernel requires."""
    return _one_tensor(x, cos, sin)


@implements("InterleaveRope")
def interleave_rope(x: Tensor, cos: Tensor, sin: Tensor) -> Prepared:
    """Works in place as `rotary_mul`. The features of a pair stay side by side; the row has them half a head apart."""
    return _one_tensor(x, cos, sin, adjacent=True)


@implements("_triton_rope")
def rotary_embedding(
    positions: Tensor, query: Tensor, key: Tensor, table: Tensor, head_size: int, rotary_size: int, is_neox: bool
) -> Prepared:
    """The table has the row's dtype on an NPU, and FLOAT here: twice as many bytes are read for an angle."""
    converted = () if table.dtype == torch.float32 else ("table of cos and sin to FLOAT",)
    q, k = (x.view(len(positions), -1, head_size) for x in (query, key))
    return _rotated(table.float(), positions.contiguous(), q, k, adjacent=not is_neox, converted=converted)


@implements("ReshapeAndCacheNdKernel")
def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_indices: Tensor
) -> Prepared:
    """Any places are those of one sequence that has all blocks in order."""
    (blocks, block_size, heads, head_size), device = key_cache.shape, key.device
    expect_dtype(HALF, key=key)
    expect_dtype((key.dtype,), value=value, key_cache=key_cache, value_cache=value_cache)
    expect(head_size in HEAD_SIZES, f"head size {head_size}", words(HEAD_SIZES))
    expect(value_cache.shape == key_cache.shape, f"values of size {value.shape[-1]}", f"the keys' size {head_size}")
    most = _MOST_THREADS * max(8, head_size // 32) // head_size
    expect(heads <= most, f"{heads} heads", f"up to {most} of size {head_size}")
    places, sequence = slot_indices.int(), torch.zeros(len(key), dtype=torch.int32, device=device)
    order = torch.arange(blocks, dtype=torch.int32, device=device)
    ends, last = (int32(numbers, device) for numbers in ([0, blocks], [block_size]))
    caches = (key_cache, value_cache)
    return Prepared(
        lambda: flashinfer.page.append_paged_kv_cache(key, value, sequence, places, caches, order, ends, last, "NHD"),
        converted=() if slot_indices.dtype == torch.int32 else ("places to INT32",),
    )


def _one_tensor(x: Tensor, cos: Tensor, sin: Tensor, adjacent: bool = False) -> Prepared:
    heads = axis_of_heads(x, cos, SUPPORT)
    tokens = tokens_by_heads(x, heads, SUPPORT)
    expect(tokens.shape[1] > 1, "1 head", "queries and keys, which are two heads or more")
    converted = (_TABLE, "pairs of the result to halves of a head") if adjacent else (_TABLE,)
    angles = _angles(x, cos, sin, heads)
    return _rotated(*angles, tokens[:, :-1], tokens[:, -1:], changed=x, adjacent=adjacent, converted=converted)


def _rotated(
    table: Tensor,
    positions: Tensor,
    q: Tensor,
    k: Tensor,
    *,
    changed: Tensor | None = None,
    adjacent: bool = False,
    converted: Sequence[str],
) -> Prepared:
    """Returns the call that rotates queries and keys (tokens, heads, D) in place, by `table` (positions, width).

    Args:
        changed: the tensor that both are views of, and that is the result; None: the two tensors that the replay
            declares as changed.
        adjacent: whether the features of a pair are side by side.
    """
    head_size, width = q.shape[-1], table.shape[-1]
    expect_dtype(HALF, query=q)
    expect_dtype((q.dtype,), key=k)
    expect(len(q) == len(k), f"{len(q)} tokens of queries and {len(k)} of keys", "as many of both")
    expect(head_size in HEAD_SIZES, f"head size {head_size}", words(HEAD_SIZES))
    least = 2 * max(8, head_size // 32)
    expect(width % least == 0, f"{width} rotated features of {head_size}", f"multiples of {least}")
    rotate = flashinfer.rope.apply_rope_with_cos_sin_cache_inplace
    return launched(
        lambda: rotate(positions, q, k, head_size, table, not adjacent),
        changed,
        changes=() if changed is None else (changed,),
        results=pairs_in_halves if adjacent and changed is not None else None,
        converted=converted,
    )


def _angles(x: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """Returns a float32 table (rows, D) of cosines and sines of the pairs, and the row of each token of x."""
    return table_of_pairs(cos, sin, torch.float32), rows_of_tokens(x, cos, heads, SUPPORT, torch.int32)
