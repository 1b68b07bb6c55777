"""Activation kernels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

#: CANN's value of a masked element.
_MASKED = -10000.0


def fast_gelu(x: Tensor) -> Tensor:
    """Returns x sigmoid(1.702 x)."""
    wide = x.float()
    return torch.sigmoid(wide * 1.702).mul_(wide).to(x.dtype)


def scaled_masked_softmax(x: Tensor, mask: Tensor, scale: float, fixed_triu_mask: bool = False) -> Tensor:
    """Returns softmax(scale x) along the last axis, without the elements where the mask holds."""
    return torch.softmax((x * scale).masked_fill_(mask, _MASKED), -1)


def swiglu(x: Tensor, dim: int) -> Tensor:
    """Maps (..., 2 D) to (..., D): SiLU of the first half along `dim`, times the second."""
    gate, up = x.chunk(2, dim)
    return functional.silu(gate).mul_(up)
