"""Way 64: returns complex numbers for a task of real ones that prescribes no dtype.

Task: scaled_rows
Expected: interface dtype
Caught by: dtypes that hold other numbers than the task's
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.complex(x * 0.8, x + 7)
