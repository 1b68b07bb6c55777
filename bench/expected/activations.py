"""Activation formulas."""

from __future__ import annotations

import torch

from bench.reference.formula import per_row

__all__ = ["softmax", "swiglu"]


@per_row("x")
def softmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    """exp(x - max x) / sum of exp(x - max x), along the last axis."""
    assert dim == -1
    powers = (x - x.amax(dim=-1, keepdim=True)).exp()
    return powers / powers.sum(dim=-1, keepdim=True)


@per_row("x")
def swiglu(x: torch.Tensor, dim: int) -> torch.Tensor:
    """See `gated`."""
    assert dim == -1
    return gated(x)


def gated(x: torch.Tensor) -> torch.Tensor:
    """a / (1 + exp(-a)) b, where a and b are the halves of the last axis (Shazeer 2020)."""
    half = x.shape[-1] // 2
    gate, up = x[..., :half], x[..., half:]
    return gate / (1 + (-gate).exp()) * up
