"""Reductions and scans."""

from __future__ import annotations

import torch

__all__ = [
    "cumulative_sum",
    "reduce_mean",
    "reduce_sum",
]

cumulative_sum = torch.cumsum
reduce_mean = torch.mean
reduce_sum = torch.sum
