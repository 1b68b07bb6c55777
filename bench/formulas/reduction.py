"""Formulas of reductions and scans."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from opatlas.run.formula import per_element, per_row, to_float64

#: Number of terms of the pieces in which long sums are added, so that no whole tensor is in float64.
_PIECE = 1 << 20


def _terms(x: Tensor, axes: Sequence[int], keepdim: bool, **_: Any) -> int:
    return prod(x.shape[axis] for axis in axes)


@per_element(terms=_terms)
def reduce_sum(at: tuple[Tensor, ...], x: Tensor, axes: Sequence[int], keepdim: bool, *, dtype: torch.dtype) -> Tensor:
    """Returns the sum over all coordinates along `axes`."""
    return _sum(at, x, axes, keepdim)


@per_element(terms=_terms)
def reduce_mean(at: tuple[Tensor, ...], x: Tensor, axes: Sequence[int], keepdim: bool, *, dtype: torch.dtype) -> Tensor:
    """Returns the sum along `axes`, divided by the number of its terms."""
    return _sum(at, x, axes, keepdim) / _terms(x, axes, keepdim)


def _sum(at: tuple[Tensor, ...], x: Tensor, axes: Sequence[int], keepdim: bool) -> Tensor:
    kept = [axis for axis in range(x.dim()) if axis not in axes]
    kept_at = tuple(at[axis] for axis in kept) if keepdim else at
    terms = x.permute(*kept, *axes)[kept_at].reshape(at[0].numel() if at else 1, _terms(x, axes, keepdim))
    width = min(terms.shape[-1], max(1, _PIECE // max(1, len(terms))))
    total = torch.zeros(len(terms), width, dtype=torch.float64, device=x.device)
    for piece in terms.split(max(1, width), dim=-1):
        total[:, : piece.shape[-1]] += piece
    if not width:
        return total.sum()
    while total.shape[-1] > 1:
        half = (total.shape[-1] + 1) // 2
        folded = total[:, :half].clone()
        folded[:, : total.shape[-1] - half] += total[:, half:]
        total = folded
    return total.reshape(at[0].shape if at else ())


@per_row("x")
def cumulative_sum(x: Tensor, dim: int, *, dtype: torch.dtype) -> Tensor:
    """Returns x[0] + ... + x[i]: after step s each number is the sum of the last 2^s (Hillis and Steele 1986)."""
    assert dim == -1
    total = to_float64(x.clone())
    step = 1
    while step < total.shape[-1]:
        total[:, step:] = total[:, step:] + total[:, :-step]
        step *= 2
    return total
