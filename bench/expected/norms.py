"""Normalization formulas."""

from __future__ import annotations

import torch

from bench.formula import per_row

__all__ = ["rms_norm"]


@per_row("x")
def rms_norm(x: torch.Tensor, gamma: torch.Tensor, *, epsilon: float) -> tuple[torch.Tensor, torch.Tensor]:
    """y = x / sqrt(mean(x^2) + epsilon) * gamma; and the factor before gamma (Zhang and Sennrich 2019)."""
    rstd = 1 / ((x * x).sum(dim=-1, keepdim=True) / x.shape[-1] + epsilon) ** 0.5
    return x * rstd * gamma, rstd
