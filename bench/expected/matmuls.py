"""Matrix products, written out as sums."""

from __future__ import annotations

import torch

from bench.formula import per_element, to_float64

__all__ = ["matmul"]


@per_element()
def matmul(
    at: tuple[torch.Tensor, torch.Tensor], a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """c[i, j] = sum over k of a[i, k] b[k, j], plus bias[j]."""
    i, j = at
    total = (to_float64(a[i, :]) * to_float64(b[:, j].T)).sum(dim=-1)
    return total if bias is None else total + to_float64(bias[j])
