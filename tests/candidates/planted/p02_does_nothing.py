"""Way 2: returns memory as it finds it.

Task: linear
Expected: hack uninitialized
Caught by: allocations hold NaN in one of the calls
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, features))

    def forward(self, x):
        return x.new_empty(len(x), len(self.weight))
