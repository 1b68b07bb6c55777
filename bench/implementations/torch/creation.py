"""Kernels that make values from none."""

from __future__ import annotations

import torch

__all__ = ["arange", "fill", "ones_like", "zeros_like"]

arange = torch.arange
fill = torch.Tensor.fill_
ones_like = torch.ones_like
zeros_like = torch.zeros_like
