"""Rotary position embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import flashinfer
import torch

from opatlas import Prepared, implements

from .._layouts import axis_of_heads, pairs_in_halves, rows_of_tokens, table_of_pairs, tokens_by_heads
from .common import HALF, HEAD_SIZES, SUPPORT, expect, expect_dtype, words


@implements("ApplyRotaryPosEmb")
def apply_rotary_pos_emb(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, layout: str
) -> Prepared:
    heads = {"TND": 1, "BSND": 2, "BNSD": 1}[layout]
    q, k = (tokens_by_heads(x, heads, SUPPORT) for x in (query, key))
    table, positions = _angles(query, cos, sin, heads)
    return _rotated(positions, q, k, table, converted=("cos and sin to a table in FLOAT",))


@implements("RotaryPositionEmbedding")
def rotary_mul(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Prepared:
    """Works in place; the last head serves as the key, which the kernel requires."""
    heads = axis_of_heads(x, cos, SUPPORT)
    tokens = tokens_by_heads(x, heads, SUPPORT)
    expect(tokens.shape[1] > 1, "1 head", "queries and keys, which are two heads or more")
    table, positions = _angles(x, cos, sin, heads)
    converted = ("cos and sin to a table in FLOAT",)
    return _rotated(positions, tokens[:, :-1], tokens[:, -1:], table, changed=x, converted=converted)


@implements("InterleaveRope")
def interleave_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Prepared:
    """Works in place as `rotary_mul`. The features of a pair stay side by side; the row has them half a head apart."""
    heads = axis_of_heads(x, cos, SUPPORT)
    tokens = tokens_by_heads(x, heads, SUPPORT)
    expect(tokens.shape[1] > 1, "1 head", "queries and keys, which are two heads or more")
    table, positions = _angles(x, cos, sin, heads)
    return _rotated(
        positions,
        tokens[:, :-1],
        tokens[:, -1:],
        table,
        changed=x,
        adjacent=True,
        converted=("cos and sin to a table in FLOAT", "pairs of the result to halves of a head"),
    )


@implements("_triton_rope")
def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    rotary_dim: int,
    is_neox_style: bool,
) -> Prepared:
    """The table has the row's dtype on an NPU, and FLOAT here: twice as many bytes are read for an angle."""
    converted = () if cos_sin_cache.dtype == torch.float32 else ("table of cos and sin to FLOAT",)
    q, k = (x.view(len(positions), -1, head_size) for x in (query, key))
    return _rotated(
        positions.contiguous(), q, k, cos_sin_cache.float(), adjacent=not is_neox_style, converted=converted
    )


def _rotated(
    positions: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    table: torch.Tensor,
    *,
    changed: torch.Tensor | None = None,
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

    def call() -> Any:
        flashinfer.rope.apply_rope_with_cos_sin_cache_inplace(positions, q, k, head_size, table, not adjacent)
        return changed

    return Prepared(
        call,
        changes=() if changed is None else (changed,),
        results=pairs_in_halves if adjacent and changed is not None else None,
        converted=converted,
    )


def _angles(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a float32 table (rows, D) of cosines and sines of the pairs, and the row of each token of x."""
    return table_of_pairs(cos, sin, torch.float32), rows_of_tokens(x, cos, heads, SUPPORT, torch.int32)
