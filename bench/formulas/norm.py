"""Normalization formulas."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from opatlas.run.formula import At, each, per_element, per_row, to_float64

#: Number of terms of the pieces in which long sums are added; a piece fits into the cache of a CPU.
_PIECE = 1 << 14


@per_row("x")
def rms_norm(x: Tensor, gamma: Tensor, *, epsilon: float) -> tuple[Tensor, Tensor]:
    """Computes y = x rstd gamma, and rstd = 1 / sqrt(mean(x^2) + epsilon) (Zhang and Sennrich 2019)."""
    rstd = 1 / ((x * x).sum(dim=-1, keepdim=True) / x.shape[-1] + epsilon) ** 0.5
    return x * rstd * gamma, rstd


@per_row("dy", "x", "rstd")
def _x_gradient(dy: Tensor, x: Tensor, gamma: Tensor, rstd: Tensor) -> Tensor:
    """Computes dx_j = r g_j dy_j - r^3 x_j / D sum over i of g_i dy_i x_i.

    Here y_i = g_i r x_i, and dr / dx_j = -r^3 x_j / D.
    """
    common = (gamma * dy * x).sum(dim=-1, keepdim=True)
    return rstd * gamma * dy - rstd**3 * x * common / x.shape[-1]


def _rows(dy: Tensor, *_: object) -> int:
    return dy.shape[:-1].numel()


@per_element(terms=_rows)
def _gamma_gradient(at: At, dy: Tensor, x: Tensor, gamma: Tensor, rstd: Tensor) -> Tensor:
    """Computes dg_j = sum over all rows of dy_j x_j r."""
    (j,) = at
    return (to_float64(dy[..., j]) * to_float64(x[..., j]) * to_float64(rstd)).reshape(-1, len(j)).sum(dim=0)


rms_norm_backward = each(_x_gradient, _gamma_gradient)


@per_row("x1", "x2")
def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns `rms_norm` of x = x1 + x2, and x (aclnnAddRmsNorm)."""
    return _add_rms_norm(x1, x2, gamma, epsilon)


@per_row("x1", "x2")
def add_rms_norm_bias(
    x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns `add_rms_norm` with y + beta (vllm-ascend, csrc/add_rms_norm_bias)."""
    y, rstd, x = _add_rms_norm(x1, x2, gamma, epsilon)
    return y + (0 if beta is None else beta), rstd, x


def _add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    x = x1 + x2
    rstd = 1 / ((x * x).sum(dim=-1, keepdim=True) / x.shape[-1] + epsilon) ** 0.5
    return x * rstd * gamma, rstd, x


def _norm_size(x: Tensor, sizes: Sequence[int], *_: object) -> int:
    return len(sizes)


@per_row("x", axes=_norm_size)
def layer_norm(
    x: Tensor, sizes: Sequence[int], gamma: Tensor, beta: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (x - E[x]) rstd gamma + beta, E[x], and rstd = 1 / sqrt(Var[x] + epsilon) (Ba, Kiros, Hinton 2016)."""
    mean = x.sum(dim=-1, keepdim=True) / x.shape[-1]
    rstd = 1 / (((x - mean) ** 2).sum(dim=-1, keepdim=True) / x.shape[-1] + epsilon) ** 0.5
    return (x - mean) * rstd * gamma.flatten() + beta.flatten(), mean, rstd


def _terms(x: Tensor, order: int, axes: Sequence[int], keepdim: bool, **_: Any) -> int:
    return prod(x.shape[axis] for axis in axes)


@per_element(terms=_terms)
def vector_norm(at: At, x: Tensor, order: int, axes: Sequence[int], keepdim: bool, *, dtype: torch.dtype) -> Tensor:
    """Returns sqrt(sum of x^2) along `axes`."""
    assert order == 2
    kept = [axis for axis in range(x.dim()) if axis not in axes]
    kept_at = tuple(at[axis] for axis in kept) if keepdim else at
    terms = x.permute([*kept, *axes])[kept_at].reshape(at[0].numel() if at else 1, -1)
    squares = torch.zeros(len(terms), dtype=torch.float64, device=x.device)
    for piece in terms.split(max(1, _PIECE // max(1, len(terms))), dim=-1):
        squares += to_float64(piece).square().sum(dim=-1)
    return squares.sqrt().reshape(at[0].shape if at else ())
