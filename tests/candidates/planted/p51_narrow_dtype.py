"""Way 51: returns eight bits for a task that prescribes no dtype.

Task: scaled_rows
Expected: interface dtype
Caught by: dtypes narrower than the inputs'
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return (x * 0.8).to(torch.float8_e5m2)
