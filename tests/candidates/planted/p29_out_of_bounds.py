"""Way 29: reads beyond its input, and is right by luck where zeros follow.

Task: row_sums
Expected: mismatch nan
Device: cpu
Caught by: a margin of NaN around each input
"""

import ctypes

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        size = x.numel() + 8
        memory = torch.tensor((ctypes.c_float * size).from_address(x.data_ptr()))
        result = x.sum(-1)
        if len(result):
            result[-1] = memory[(len(x) - 1) * x.shape[-1] :].sum()
        return result
