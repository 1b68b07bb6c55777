"""Poolings of feature maps (N, C, H, W) and volumes (N, C, D, H, W), and their gradients."""

from __future__ import annotations

import torch

adaptive_average_pool3d = torch.ops.aten._adaptive_avg_pool3d
adaptive_average_pool3d_backward = torch.ops.aten._adaptive_avg_pool3d_backward
max_pool2d = torch.ops.aten.max_pool2d_with_indices
max_pool2d_backward = torch.ops.aten.max_pool2d_with_indices_backward
