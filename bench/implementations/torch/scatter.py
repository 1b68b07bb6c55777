"""Kernels that gather from or scatter to indexed positions."""

from __future__ import annotations

import torch

index_put = torch.ops.aten.index_put_.default


def scatter_nd_update(target: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """Writes updates (..., rest) to the positions of target (first k axes, rest) in indices (..., k)."""
    return target.index_put_(indices.unbind(-1), updates)
