"""Activation kernels."""

from __future__ import annotations

import torch
from torch.nn import functional

__all__ = ["softmax", "swiglu"]

softmax = torch.softmax


def swiglu(x: torch.Tensor, dim: int) -> torch.Tensor:
    """(..., 2 D) to (..., D): SiLU of the first half along `dim`, times the second."""
    gate, up = x.chunk(2, dim)
    return functional.silu(gate).mul_(up)
