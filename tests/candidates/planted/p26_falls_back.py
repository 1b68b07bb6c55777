"""Way 26: falls back to torch where its kernel fails.

Task: softmax
Expected: pass
Static: rule fallback
Caught by: the rule fallback
"""

import ctypes

import torch
from torch import nn

kernels = ctypes.CDLL(None)


class ModelNew(nn.Module):
    def forward(self, x):
        try:
            result = torch.empty_like(x)
            kernels.planted_softmax(ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(result.data_ptr()))
            return result
        except Exception:
            return torch.softmax(x, dim=-1)
