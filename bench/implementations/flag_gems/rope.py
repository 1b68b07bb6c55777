"""Rotary position embeddings and writes to paged caches.

Rotations write new tensors: with `inplace=True` a thread may read a feature that another one has overwritten.
"""

from __future__ import annotations

from typing import Any

import flag_gems
import torch

from opatlas import Prepared, implements

from .._layouts import axis_of_heads, pairs_in_halves, rows_of_tokens, tokens_by_heads, written_to_cache
from .common import SUPPORT, expect


@implements("ApplyRotaryPosEmb")
def apply_rotary_pos_emb(
    query: torch.Tensor, key: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, layout: str
) -> Prepared:
    heads = {"TND": 1, "BSND": 2, "BNSD": 1}[layout]
    q, k = (tokens_by_heads(x, heads, SUPPORT) for x in (query, key))
    tables = _angles(query, cos, sin, heads)
    return Prepared(
        lambda: flag_gems.apply_rotary_pos_emb(q, k, *tables),
        results=lambda turned: tuple(_as_row(y, x, heads) for y, x in zip(turned, (query, key), strict=True)),
    )


@implements("RotaryPositionEmbedding")
def rotary_mul(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Prepared:
    return _one_tensor(x, cos, sin, adjacent=False)


@implements("InterleaveRope")
def interleave_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Prepared:
    """The features of a pair stay side by side; the row has them half a head apart."""
    return _one_tensor(x, cos, sin, adjacent=True)


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
    expect(rotary_dim == head_size, f"{rotary_dim} rotated features of {head_size}", "rotations of whole heads")
    q, k = (x.view(len(positions), -1, head_size) for x in (query, key))
    cos, sin = cos_sin_cache.chunk(2, -1)
    return Prepared(
        lambda: flag_gems.apply_rotary_pos_emb(q, k, cos, sin, positions, not is_neox_style),
        results=lambda turned: (turned[0].view_as(query), turned[1].view_as(key)),
    )


@implements("ReshapeAndCacheNdKernel")
def reshape_and_cache(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_indices: torch.Tensor,
) -> Prepared:
    for name, first, second in (
        ("shapes", tuple(key.shape), tuple(value.shape)),
        ("dtypes", key.dtype, value.dtype),
    ):
        expect(first == second, f"{name} {first} and {second}", f"keys and values of equal {name}")
    return written_to_cache(flag_gems, key, value, key_cache, value_cache, slot_indices)


def _one_tensor(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, *, adjacent: bool) -> Prepared:
    """Rotates one tensor: its last head serves as the key, which the kernel requires."""
    heads = axis_of_heads(x, cos, SUPPORT)
    tokens = tokens_by_heads(x, heads, SUPPORT)
    q, k = tokens[:, :-1], tokens[:, -1:]
    tables = _angles(x, cos, sin, heads)

    def results(turned: Any) -> torch.Tensor:
        y = torch.cat(turned, dim=1)
        return _as_row(pairs_in_halves(y) if adjacent else y, x, heads)

    converted = ["heads of the result put together"]
    if adjacent:
        converted.append("pairs of the result to halves of a head")
    return Prepared(
        lambda: flag_gems.apply_rotary_pos_emb(q, k, *tables, adjacent),
        results=results,
        converted=converted,
    )


def _as_row(y: torch.Tensor, x: torch.Tensor, heads: int) -> torch.Tensor:
    """Returns y (tokens, heads, D) in the shape of x."""
    return y.reshape(x.movedim(heads, -2).shape).movedim(-2, heads)


def _angles(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns tables (rows, D / 2) of cosines and sines, and the row of each token of x."""
    rows, width = rows_of_tokens(x, cos, heads, SUPPORT, torch.int32), cos.shape[-1]
    first, second = (angles.view(-1, width)[:, : width // 2] for angles in (cos, sin))
    return first, second, rows
