"""Activation formulas."""

from __future__ import annotations

import torch
from torch import Tensor

from opatlas.run.formula import per_element, per_row, pointwise, to_float64


@per_row("x")
def softmax(x: Tensor, dim: int) -> Tensor:
    """Returns exp(x - max x) / sum of exp(x - max x), along the last axis."""
    assert dim == -1
    powers = (x - x.amax(dim=-1, keepdim=True)).exp()
    return powers / powers.sum(dim=-1, keepdim=True)


@per_row("x")
def swiglu(x: Tensor, dim: int) -> Tensor:
    """Returns a / (1 + exp(-a)) b, where a and b are the halves of the last axis (Shazeer 2020)."""
    assert dim == -1
    return gate_halves(x)


def gate_halves(x: Tensor) -> Tensor:
    """Returns a / (1 + exp(-a)) b, where a and b are the halves of the last axis."""
    half = x.shape[-1] // 2
    gate, up = x[..., :half], x[..., half:]
    return gate / (1 + (-gate).exp()) * up


@pointwise
def fast_gelu(x: Tensor) -> Tensor:
    """Returns x / (1 + exp(-1.702 x)) (Hendrycks and Gimpel 2016; aclnnFastGelu)."""
    return x / (1 + (-1.702 * x).exp())


@pointwise
def silu(x: Tensor) -> Tensor:
    """Returns x / (1 + exp(-x)) (Elfwing et al. 2018; aclnnSilu, which is Swish with a scale of 1)."""
    return x / (1 + (-x).exp())


def _row_length(x: Tensor, *_: object) -> int:
    return x.shape[-1]


@per_element(terms=_row_length)
def scaled_masked_softmax(
    at: tuple[Tensor, ...], x: Tensor, mask: Tensor, scale: float, fixed_triu_mask: bool = False
) -> Tensor:
    """Returns softmax(z) along the last axis; z = -10000 where the mask holds, else scale x."""
    z = to_float64(x[at[:-1]]) * scale
    z = z.where(~mask.expand(x.shape)[at[:-1]], torch.tensor(-10000.0, dtype=z.dtype, device=z.device))
    powers = (z - z.amax(dim=-1, keepdim=True)).exp()
    return powers[torch.arange(len(powers), device=x.device), at[-1]] / powers.sum(dim=-1)
