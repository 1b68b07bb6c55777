"""Way 25: has a kernel in a branch that is never taken.

Task: softmax
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
def scale(pointer, n, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    tl.store(pointer + at, tl.load(pointer + at, mask=at < n) * 2, mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        if x.shape[-1] < 0:
            scale[(1,)](x, x.numel(), 1024)
        return torch.softmax(x, dim=-1)
