"""Normalization kernels."""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["rms_norm"]


def rms_norm(x: torch.Tensor, gamma: torch.Tensor, *, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(..., D) and (D,) to y of x's shape and the reciprocal root mean square, float32 (..., 1)."""
    y = functional.rms_norm(x, gamma.shape, gamma, epsilon)
    rstd = torch.rsqrt(x.float().square().mean(dim=-1, keepdim=True) + epsilon)
    return y, rstd
