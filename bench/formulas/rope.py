"""Formulas of rotary position embeddings, y_j = x_j cos_j + rotate(x)_j sin_j, and of paged caches.

Sources: torch_npu.npu_rotary_mul, npu_interleave_rope, npu_kv_rmsnorm_rope_cache and aclnnRotaryPositionEmbeddingGrad
(op-plugin and CANN documentation); vllm-ascend, ops/triton/rope.py and ops/triton/linearnorm/split_qkv_rmsnorm_rope.py;
ATB's ReshapeAndCache and PagedCacheLoad (their documentation and checks of shapes).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from opatlas.run.formula import At, each, per_element, to_float64
from opatlas.run.result_check import Formula

from .indexing import overwrite


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


def _apply_to(number: int) -> Formula:
    @per_element()
    def apply_rotary_pos_emb(at: At, *arguments: Any, layout: str, rotary_mode: str = "half") -> Tensor:
        _query, _key, cos, sin = arguments
        return _rotate(at, arguments[number], cos, sin, rotary_mode)

    return apply_rotary_pos_emb


#: Of the query and of the key.
apply_rotary_pos_emb = each(_apply_to(0), _apply_to(1))


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


def _embed(number: int) -> Formula:
    @per_element()
    def rotary_embedding(at: At, *arguments: Any) -> Tensor:
        positions, _, _, cos_sin_cache, _, _, is_neox_style = arguments
        *leading, j = at
        mode = "half" if is_neox_style else "interleave"
        return _rotate_by_position(_features(arguments[number], leading), at[0], j, positions, cos_sin_cache, mode)

    return rotary_embedding


@per_element()
def rope_siso(at: At, x: Tensor, cos: None, sin: None, table: Tensor, positions: Tensor, width: int) -> Tensor:
    *leading, j = at
    return _rotate_by_position(_features(x, leading), at[0], j, positions, table, "half")


rotary_embedding = each(_embed(1), _embed(2))


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


def _split(number: int) -> Formula:
    @per_element(terms=lambda fused, table, positions, *rest: rest[4], steps=_STEPS)
    def qkv_rmsnorm_rope(at: At, fused: Tensor, table: Tensor, positions: Tensor, *rest: Any) -> Tensor:
        q, kv, head, eps = rest[2:]
        part = fused[:, q : q + kv] if number else fused[:, :q]
        return _normalize_and_rotate(at, part, rest[number], positions, table, head, eps)

    return qkv_rmsnorm_rope


@per_element(exact=True)
def _split_value(at: At, fused: Tensor, table: Tensor, positions: Tensor, *rest: Any) -> Tensor:
    _, _, q, kv, _, _ = rest
    token, column = at
    return fused[token, q + kv + column]


qkv_rmsnorm_rope = each(_split(0), _split(1), _split_value)


def _block_and_offset(slots: Tensor, cache: Tensor) -> tuple[Tensor, ...]:
    slots = slots.to(torch.int64)
    return slots // cache.shape[1], slots % cache.shape[1]


def _written(number: int) -> Formula:
    """Returns the formula of a cache: the keys', the values'."""

    @per_element(exact=True, written=lambda *arguments: _block_and_offset(arguments[4], arguments[2 + number]))
    def reshape_and_cache(at: At, *arguments: Tensor) -> Tensor:
        return overwrite(at, arguments[2 + number], 2, arguments[4], lambda *source: arguments[number][source])

    return reshape_and_cache


reshape_and_cache = each(_written(0), _written(1))


#: Returns elements of the vectors that kv_rmsnorm_rope_cache makes of tokens.
_Vectors = Callable[[At, Tensor, Tensor, Tensor, Tensor, float], Tensor]


def _latent(at: At, kv: Tensor, gamma: Tensor, cos: Tensor, sin: Tensor, epsilon: float) -> Tensor:
    """Returns x / sqrt(mean(x^2) + epsilon) gamma; x is the first part of kv, as long as gamma."""
    *leading, j = at
    x = to_float64(kv[tuple(leading)][:, : len(gamma)])
    own = x.gather(-1, j.unsqueeze(-1)).squeeze(-1)
    return own / ((x * x).sum(dim=-1) / len(gamma) + epsilon).sqrt() * to_float64(gamma[j])


def _rotary(at: At, kv: Tensor, gamma: Tensor, cos: Tensor, sin: Tensor, epsilon: float) -> Tensor:
    """Returns the second part of kv: even features, then odd ones, rotated by halves."""
    return rotate_interleaved_pairs(at, kv[..., len(gamma) :], at_angles(at, cos), at_angles(at, sin))


def _width(kv: Tensor, gamma: Tensor, *_: Any, **__: Any) -> int:
    return len(gamma)


def _cached(vectors: _Vectors, number: int, terms: Callable[..., int] | None = None) -> Formula:
    """Returns the formula of a cache, the rotary or the latent one."""

    @per_element(terms=terms, written=lambda *arguments, **_: _block_and_offset(arguments[4], arguments[5]))
    def kv_rmsnorm_rope_cache(at: At, kv: Tensor, *norm: Tensor, epsilon: float, **_: Any) -> Tensor:
        gamma, cos, sin, index, *caches = norm

        def vector_of(i: Tensor, head: Tensor, j: Tensor) -> Tensor:
            token = (i // kv.shape[2], torch.zeros_like(i), i % kv.shape[2], j)
            return vectors(token, kv, gamma, cos, sin, epsilon)

        return overwrite(at, caches[number], 2, index, vector_of)

    return kv_rmsnorm_rope_cache


def _output(vectors: _Vectors, terms: Callable[..., int] | None = None) -> Formula:
    @per_element(terms=terms)
    def kv_rmsnorm_rope_cache(at: At, *arguments: Tensor, epsilon: float, **_: Any) -> Tensor:
        kv, gamma, cos, sin = arguments[:4]
        return vectors(at, kv, gamma, cos, sin, epsilon)

    return kv_rmsnorm_rope_cache


kv_rmsnorm_rope_cache = each(
    _cached(_rotary, 0), _cached(_latent, 1, _width), _output(_rotary), _output(_latent, _width)
)


def _loaded(number: int) -> Formula:
    """Returns the formula of the loaded keys or values, whose sequences follow each other."""

    @per_element(exact=True)
    def paged_cache_load(at: At, *arguments: Tensor, seq_starts: Tensor | None, cumsum: bool, **_: Any) -> Tensor:
        (token, *rest), cache, (table, lengths) = at, arguments[number], arguments[2:]
        ends = (lengths[1:] if cumsum else lengths.cumsum(0)).to(torch.int64)
        sequence = (token.unsqueeze(-1) >= ends).sum(dim=-1)
        first = torch.cat([ends.new_zeros(1), ends])[sequence]
        place = token - first + (0 if seq_starts is None else seq_starts[sequence].to(torch.int64))
        source = (table[sequence, place // cache.shape[1]].to(torch.int64), place % cache.shape[1], *rest)
        return cache[source]

    return paged_cache_load


paged_cache_load = each(_loaded(0), _loaded(1))
