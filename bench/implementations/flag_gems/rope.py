"""Rotary position embeddings and writes to paged caches.

Rotations write new tensors: with `inplace=True` a thread may read a feature that another one has overwritten.
"""

from __future__ import annotations

from typing import Any

import flag_gems
import torch
from torch import Tensor

from opatlas import Prepared, implements

from .._calls import written_to_cache
from .._layouts import HEADS, axis_of_heads, pairs_in_halves, rows_of_tokens, tokens_by_heads
from . import SUPPORT, expect


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
    return written_to_cache(flag_gems, key, value, key_cache, value_cache, slot_indices)


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
