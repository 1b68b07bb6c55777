"""Convolutions and poolings of feature maps (N, C, H, W) and volumes (N, C, D, H, W), and their gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .matmul import needs_float32


def conv2d(image: Tensor, weight: Tensor, bias: Tensor | None, *arguments: Any) -> Tensor:
    """Calls torch.conv2d, in float32 where that is faster."""
    if needs_float32(image):
        bias = None if bias is None else bias.float()
        return torch.conv2d(image.float(), weight.float(), bias, *arguments).to(image.dtype)
    return torch.conv2d(image, weight, bias, *arguments)


def convolution_backward(gradient: Tensor, image: Tensor, weight: Tensor, *arguments: Any) -> Tensor:
    """Calls aten's convolution_backward for one gradient, and returns the gradient."""
    dtype = gradient.dtype
    if needs_float32(gradient):
        gradient, image, weight = gradient.float(), image.float(), weight.float()
    results = torch.ops.aten.convolution_backward(gradient, image, weight, *arguments)
    wanted: Tensor
    (wanted,) = (result for result in results if result is not None)
    return wanted.to(dtype)


adaptive_average_pool3d = torch.ops.aten._adaptive_avg_pool3d
adaptive_average_pool3d_backward = torch.ops.aten._adaptive_avg_pool3d_backward
max_pool2d = torch.ops.aten.max_pool2d_with_indices
max_pool2d_backward = torch.ops.aten.max_pool2d_with_indices_backward
