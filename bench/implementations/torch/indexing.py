"""Kernels that choose elements or write to chosen ones: by index, by mask, by order."""

from __future__ import annotations

import torch
from torch import Tensor

index = torch.ops.aten.index.Tensor


def index_fill(x: Tensor, dim: int, indices: Tensor, value: float) -> Tensor:
    """Calls torch.index_fill with indices of any integer type."""
    return torch.index_fill(x, dim, indices.long(), value)


def argmax(x: Tensor, dim: int) -> Tensor:
    """Calls torch.argmax, in float32 where that is faster."""
    if x.device.type == "cpu" and x.dtype in (torch.bfloat16, torch.float16):
        # On a CPU torch compares half types one by one; float32 is two to four times as fast.
        x = x.float()
    return torch.argmax(x, dim)


index_put = torch.ops.aten.index_put_.default


def scatter_nd_update(target: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Writes updates (..., rest) to the positions of target (first k axes, rest) in indices (..., k)."""
    return target.index_put_(indices.unbind(-1), updates)


top_k = torch.topk


def apply_top_k_top_p(logits: Tensor, p: Tensor | None = None, k: Tensor | None = None) -> Tensor:
    """Keeps of the logits (B, V) the k (B) largest, and of these the top share p (B); others become minus infinity.

    The time includes the sort, for which the NPU call launches another kernel.
    """
    values, order = logits.float().sort(dim=-1, stable=True)
    if k is not None:
        least = values.gather(-1, (values.shape[-1] - k.long()).unsqueeze(-1))
        values.masked_fill_(values < least, -torch.inf)
    if p is not None:
        below = values.softmax(dim=-1).cumsum_(dim=-1) <= 1 - p.float().unsqueeze(-1)
        below[..., -1] = False
        values.masked_fill_(below, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, values.to(logits.dtype))
