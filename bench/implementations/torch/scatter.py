"""Kernels that gather from, and scatter into, places that indices name."""

from __future__ import annotations

import torch

index_put = torch.ops.aten.index_put_.default


def scatter_nd_update(target: torch.Tensor, indices: torch.Tensor, updates: torch.Tensor) -> torch.Tensor:
    """Puts each of updates (..., rest) at the place of target (first k axes, rest) that indices (..., k) name."""
    return target.index_put_(indices.unbind(-1), updates)
