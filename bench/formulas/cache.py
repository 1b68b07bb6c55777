"""Formulas of paged caches, element by element: the token of a position, and the position of a token.

Sources: ATB's ReshapeAndCache and PagedCacheLoad (their documentation and checks of shapes),
torch_npu.npu_kv_rmsnorm_rope_cache (op-plugin documentation; CANN's aclnnKvRmsNormRopeCache).
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from opatlas.run.formula import At, each, per_element, to_float64

from .rope import at_angles, rotate_interleaved_pairs


def overwrite(at: At, target: Tensor, axes: int, positions: Tensor, value_at: Callable[..., Tensor]) -> Tensor:
    """Returns elements of `target` after writing `value_at(i, ...)` to positions[i] of its first `axes` axes, flat.

    `value_at` gets i and the coordinates along the other axes. The positions are distinct.
    """
    sizes = target.shape[:axes]
    writer = torch.full((prod(sizes),), -1, device=target.device)
    writer[positions.to(torch.int64)] = torch.arange(len(positions), device=target.device)
    position = torch.zeros_like(at[0])
    for index, size in zip(at, sizes, strict=False):
        position = position * size + index
    i = writer[position]
    hit = i >= 0
    new = value_at(i[hit], *(index[hit] for index in at[axes:]))
    result = target[at].to(new.dtype)
    result[hit] = new
    return result


def _block_and_offset(slots: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    slots = slots.to(torch.int64)
    return slots // cache.shape[1], slots % cache.shape[1]


@per_element(exact=True, written=lambda key, value, key_cache, value_cache, slots: _block_and_offset(slots, key_cache))
def _key_cache(at: At, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> Tensor:
    return overwrite(at, key_cache, 2, slots, lambda *source: key[source])


@per_element(
    exact=True, written=lambda key, value, key_cache, value_cache, slots: _block_and_offset(slots, value_cache)
)
def _value_cache(at: At, key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slots: Tensor) -> Tensor:
    return overwrite(at, value_cache, 2, slots, lambda *source: value[source])


reshape_and_cache = each(_key_cache, _value_cache)


def _rms_norm(at: At, kv: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    """Returns x / sqrt(mean(x^2) + epsilon) gamma; x is the first part of kv, as long as gamma."""
    *leading, j = at
    x = to_float64(kv[tuple(leading)][:, : len(gamma)])
    own = x.gather(-1, j.unsqueeze(-1)).squeeze(-1)
    return own / ((x * x).sum(dim=-1) / len(gamma) + epsilon).sqrt() * to_float64(gamma[j])


def _rotate(at: At, kv: Tensor, gamma: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns the second part of kv: even features, then odd ones, rotated by halves."""
    return rotate_interleaved_pairs(at, kv[..., len(gamma) :], at_angles(at, cos), at_angles(at, sin))


def _token(i: Tensor, kv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the coordinates of token i in kv (batch, 1, tokens, size)."""
    return i // kv.shape[2], torch.zeros_like(i), i % kv.shape[2]


def _width(kv: Tensor, gamma: Tensor, *_: Any, **__: Any) -> int:
    return len(gamma)


@per_element(written=lambda kv, gamma, cos, sin, index, k_cache, ckv_cache, **_: _block_and_offset(index, k_cache))
def _rope_cache(
    at: At, kv: Tensor, gamma: Tensor, cos: Tensor, sin: Tensor, index: Tensor, k_cache: Tensor, *_: Any, **__: Any
) -> Tensor:
    return overwrite(at, k_cache, 2, index, lambda i, head, j: _rotate((*_token(i, kv), j), kv, gamma, cos, sin))


@per_element(
    terms=_width, written=lambda kv, gamma, cos, sin, index, k_cache, ckv_cache, **_: _block_and_offset(index, k_cache)
)
def _latent_cache(
    at: At,
    kv: Tensor,
    gamma: Tensor,
    cos: Tensor,
    sin: Tensor,
    index: Tensor,
    k_cache: Tensor,
    ckv_cache: Tensor,
    *,
    epsilon: float,
    **_: Any,
) -> Tensor:
    return overwrite(at, ckv_cache, 2, index, lambda i, head, j: _rms_norm((*_token(i, kv), j), kv, gamma, epsilon))


@per_element()
def _rope_output(at: At, kv: Tensor, gamma: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any) -> Tensor:
    return _rotate(at, kv, gamma, cos, sin)


@per_element(terms=_width)
def _latent_output(at: At, kv: Tensor, gamma: Tensor, *_: Any, epsilon: float, **__: Any) -> Tensor:
    return _rms_norm(at, kv, gamma, epsilon)


kv_rmsnorm_rope_cache = each(_rope_cache, _latent_cache, _rope_output, _latent_output)


def _load(
    at: At, cache: Tensor, table: Tensor, lengths: Tensor, *, seq_starts: Tensor | None, cumsum: bool, **_: Any
) -> Tensor:
    """Returns elements of the loaded sequences, which follow each other in the result."""
    token, *rest = at
    ends = (lengths[1:] if cumsum else lengths.cumsum(0)).to(torch.int64)
    sequence = (token.unsqueeze(-1) >= ends).sum(dim=-1)
    first = torch.cat([ends.new_zeros(1), ends])[sequence]
    number = token - first + (0 if seq_starts is None else seq_starts[sequence].to(torch.int64))
    block = table[sequence, number // cache.shape[1]].to(torch.int64)
    source = (block, number % cache.shape[1], *rest)
    return cache[source]


@per_element(exact=True)
def _load_key(at: At, key_cache: Tensor, value_cache: Tensor, *tables: Tensor, **options: Any) -> Tensor:
    return _load(at, key_cache, *tables, **options)


@per_element(exact=True)
def _load_value(at: At, key_cache: Tensor, value_cache: Tensor, *tables: Tensor, **options: Any) -> Tensor:
    return _load(at, value_cache, *tables, **options)


paged_cache_load = each(_load_key, _load_value)
