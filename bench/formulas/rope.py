"""Formulas of rotary position embeddings, y_j = x_j cos_j + rotate(x)_j sin_j, and of paged caches.

Sources: torch_npu.npu_rotary_mul, npu_interleave_rope, npu_kv_rmsnorm_rope_cache and aclnnRotaryPositionEmbeddingGrad
(op-plugin and CANN documentation); vllm-ascend, ops/triton/rope.py and ops/triton/linearnorm/split_qkv_rmsnorm_rope.py;
ATB's ReshapeAndCache and PagedCacheLoad (their documentation and checks of shapes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from opatlas.run.formula import At, each, per_element, to_float64


def partner(j: Tensor, width: int, mode: str) -> tuple[Tensor, Tensor]:
    """Returns k and s in rotate(x)_j = s x_k.

    half: rotate(x) is -x2 followed by x1, the halves of x. interleave: adjacent (a, b) become (-b, a).
    """
    if mode == "half":
        return (j + width // 2) % width, torch.where(j < width // 2, -1.0, 1.0)
    return j + 1 - 2 * (j % 2), torch.where(j % 2 == 0, -1.0, 1.0)


def rotation(x: Callable[[Tensor], Tensor], j: Tensor, width: int, cos: Tensor, sin: Tensor, mode: str) -> Tensor:
    """Returns feature j of the rotated vector of `width` features; x(k) is feature k of the vector."""
    k, sign = partner(j, width, mode)
    return x(j) * cos + sign * x(k) * sin


def _features(x: Tensor, leading: Sequence[Tensor]) -> Callable[[Tensor], Tensor]:
    """Returns a function of k that gives feature k of the vectors of x at the leading coordinates."""

    def feature(k: Tensor) -> Tensor:
        at = (*leading, k)
        return to_float64(x[at])

    return feature


def at_angles(at: At, angles: Tensor) -> Tensor:
    """Returns cos or sin, broadcast, at the coordinates of an element."""
    return to_float64(angles[tuple(i * (size != 1) for i, size in zip(at, angles.shape, strict=True))])


def _rotate(at: At, x: Tensor, cos: Tensor, sin: Tensor, mode: str) -> Tensor:
    *leading, j = at
    angles = at_angles(at, cos), at_angles(at, sin)
    return rotation(_features(x, leading), j, x.shape[-1], *angles, mode)


@per_element()
def rotary_mul(at: At, x: Tensor, cos: Tensor, sin: Tensor, rotary_mode: str = "half") -> Tensor:
    return _rotate(at, x, cos, sin, rotary_mode)


@per_element()
def interleave_rope(at: At, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rotate_interleaved_pairs(at, x, at_angles(at, cos), at_angles(at, sin))


def rotate_interleaved_pairs(at: At, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns x with even features before odd ones, rotated by halves."""
    *leading, j = at
    half, feature = x.shape[-1] // 2, _features(x, leading)
    return rotation(lambda k: feature(2 * (k % half) + k // half), j, 2 * half, cos, sin, "half")


@per_element()
def _x_gradient(at: At, grad: Tensor, x: Tensor | None, cos: Tensor, sin: Tensor, rotary_mode: str = "half") -> Tensor:
    """Computes dx = dy cos - rotate(dy sin): the transpose of rotate is its negative."""
    *leading, j = at
    k, sign = partner(j, grad.shape[-1], rotary_mode)
    opposite = (*leading, k)
    return to_float64(grad[at]) * at_angles(at, cos) - sign * to_float64(grad[opposite]) * at_angles(opposite, sin)


def _terms(grad: Tensor, x: Tensor, cos: Tensor, *_: object, **__: object) -> int:
    return grad.numel() // max(cos.numel(), 1)


@per_element(terms=_terms)
def _cos_gradient(at: At, grad: Tensor, x: Tensor, cos: Tensor, sin: Tensor, rotary_mode: str = "half") -> Tensor:
    """Returns dcos, the sum of dy x over the axes along which cos was broadcast."""
    return (_uses(at, grad, cos) * _uses(at, x, cos)).sum(dim=-1)


@per_element(terms=_terms)
def _sin_gradient(at: At, grad: Tensor, x: Tensor, cos: Tensor, sin: Tensor, rotary_mode: str = "half") -> Tensor:
    """Returns dsin, the sum of dy rotate(x) over the same axes."""
    *leading, j = at
    k, sign = partner(j, x.shape[-1], rotary_mode)
    return sign * (_uses(at, grad, cos) * _uses((*leading, k), x, cos)).sum(dim=-1)


def _uses(at: At, x: Tensor, angles: Tensor) -> Tensor:
    """Returns the elements of x that use an angle: (sampled angles, uses)."""
    kept = [axis for axis in range(x.dim()) if angles.shape[axis] == x.shape[axis]]
    rest = [axis for axis in range(x.dim()) if axis not in kept]
    return to_float64(x.permute(*kept, *rest)[tuple(at[axis] for axis in kept)].reshape(len(at[0]), -1))


rotary_mul_backward = each(_x_gradient, _cos_gradient, _sin_gradient)


@per_element()
def _apply_to_query(
    at: At, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, layout: str, rotary_mode: str = "half"
) -> Tensor:
    return _rotate(at, query, cos, sin, rotary_mode)


@per_element()
def _apply_to_key(
    at: At, query: Tensor, key: Tensor, cos: Tensor, sin: Tensor, layout: str, rotary_mode: str = "half"
) -> Tensor:
    return _rotate(at, key, cos, sin, rotary_mode)


apply_rotary_pos_emb = each(_apply_to_query, _apply_to_key)


def _rotate_by_position(
    x: Callable[[Tensor], Tensor], token: Tensor, j: Tensor, positions: Tensor, cos_sin_cache: Tensor, mode: str
) -> Tensor:
    """Returns feature j of the head of a token.

    The table has cosines of the pairs, then sines; features beyond the table stay.
    """
    width = cos_sin_cache.shape[-1]
    of_pair = j % (width // 2) if mode == "half" else j % width // 2
    position = positions[token].to(torch.int64)
    cos, sin = (to_float64(cos_sin_cache[position, of_pair + first]) for first in (0, width // 2))
    inside = j < width
    return torch.where(inside, rotation(x, torch.where(inside, j, 0), width, cos, sin, mode), x(j))


def _embed(at: At, x: Tensor, positions: Tensor, cos_sin_cache: Tensor, is_neox_style: bool) -> Tensor:
    *leading, j = at
    mode = "half" if is_neox_style else "interleave"
    return _rotate_by_position(_features(x, leading), at[0], j, positions, cos_sin_cache, mode)


@per_element()
def _embed_query(
    at: At, positions: Tensor, query: Tensor, key: Tensor, cos_sin_cache: Tensor, head: int, rotary: int, neox: bool
) -> Tensor:
    return _embed(at, query, positions, cos_sin_cache, neox)


@per_element()
def _embed_key(
    at: At, positions: Tensor, query: Tensor, key: Tensor, cos_sin_cache: Tensor, head: int, rotary: int, neox: bool
) -> Tensor:
    return _embed(at, key, positions, cos_sin_cache, neox)


rotary_embedding = each(_embed_query, _embed_key)


def _normalize_and_rotate(
    at: At, x: Tensor, weight: Tensor, positions: Tensor, cos_sin_cache: Tensor, head_dim: int, eps: float
) -> Tensor:
    """Returns x / sqrt(mean(x^2) + eps) * weight over each head of x (T, heads * head_dim), then rotated."""
    token, column = at
    first = column - column % head_dim
    head = to_float64(x[token.unsqueeze(-1), first.unsqueeze(-1) + torch.arange(head_dim, device=x.device)])
    head = head / (head.square().sum(dim=-1, keepdim=True) / head_dim + eps).sqrt() * to_float64(weight)

    def feature(k: Tensor) -> Tensor:
        return head.gather(-1, k.unsqueeze(-1)).squeeze(-1)

    return _rotate_by_position(feature, token, column % head_dim, positions, cos_sin_cache, "half")


#: A kernel may round between norm and rotation, and the rotation may leave a small difference of large numbers.
_STEPS = 2


def _head_size(fused: Tensor, table: Tensor, positions: Tensor, *rest: Any) -> int:
    return int(rest[4])


@per_element(terms=_head_size, steps=_STEPS)
def _split_query(at: At, fused: Tensor, table: Tensor, positions: Tensor, *rest: Any) -> Tensor:
    weight, _, q, _, head, eps = rest
    return _normalize_and_rotate(at, fused[:, :q], weight, positions, table, head, eps)


@per_element(terms=_head_size, steps=_STEPS)
def _split_key(at: At, fused: Tensor, table: Tensor, positions: Tensor, *rest: Any) -> Tensor:
    _, weight, q, kv, head, eps = rest
    return _normalize_and_rotate(at, fused[:, q : q + kv], weight, positions, table, head, eps)


@per_element(exact=True)
def _split_value(at: At, fused: Tensor, table: Tensor, positions: Tensor, *rest: Any) -> Tensor:
    _, _, q, kv, _, _ = rest
    token, column = at
    return fused[token, q + kv + column]


qkv_rmsnorm_rope = each(_split_query, _split_key, _split_value)


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


def _norm_latent(at: At, kv: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    """Returns x / sqrt(mean(x^2) + epsilon) gamma; x is the first part of kv, as long as gamma."""
    *leading, j = at
    x = to_float64(kv[tuple(leading)][:, : len(gamma)])
    own = x.gather(-1, j.unsqueeze(-1)).squeeze(-1)
    return own / ((x * x).sum(dim=-1) / len(gamma) + epsilon).sqrt() * to_float64(gamma[j])


def _rotate_rest(at: At, kv: Tensor, gamma: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
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
    return overwrite(at, k_cache, 2, index, lambda i, head, j: _rotate_rest((*_token(i, kv), j), kv, gamma, cos, sin))


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
    return overwrite(at, ckv_cache, 2, index, lambda i, head, j: _norm_latent((*_token(i, kv), j), kv, gamma, epsilon))


@per_element()
def _rope_output(at: At, kv: Tensor, gamma: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any) -> Tensor:
    return _rotate_rest(at, kv, gamma, cos, sin)


@per_element(terms=_width)
def _latent_output(at: At, kv: Tensor, gamma: Tensor, *_: Any, epsilon: float, **__: Any) -> Tensor:
    return _norm_latent(at, kv, gamma, epsilon)


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
