"""Way 24: torch does the work, beside a toy kernel.

Task: linear
Expected: pass
Device: cuda
Notes: torch does the work
Caught by: the share of the time in kernels that the candidate defines
"""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def toy(pointer):
    tl.store(pointer, 1.0)


class ModelNew(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, features))
        self.register_buffer("scratch", torch.zeros(1), persistent=False)

    def forward(self, x):
        toy[(1,)](self.scratch)
        return x @ self.weight.T
