"""Way 66: computes with eight bits, and returns the dtype of the task.

Task: scaled_rows
Expected: mismatch
Caught by: the tolerance of the task's dtype
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return (x * 0.8).to(torch.float8_e4m3fn).float()
