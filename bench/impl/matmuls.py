"""Matrix products."""

from __future__ import annotations

import torch

__all__ = ["matmul"]


def matmul(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """(M, K) and (K, N), perhaps plus (N,), to (M, N). Operands may be transposed views."""
    return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
