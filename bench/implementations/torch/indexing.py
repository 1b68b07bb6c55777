"""Kernels that choose elements: by index, by mask, by order."""

from __future__ import annotations

import torch

index = torch.ops.aten.index.Tensor


def index_fill(x: torch.Tensor, dim: int, indices: torch.Tensor, value: float) -> torch.Tensor:
    """Calls torch.index_fill with indices of any integer type."""
    return torch.index_fill(x, dim, indices.long(), value)


def argmax(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Calls torch.argmax, in float32 where that is faster."""
    if x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16):
        # On a CPU torch compares half types one by one; float32 is two to four times as fast.
        x = x.float()
    return torch.argmax(x, dim)
