"""Way 22: computes a float32 product in float16.

Task: linear
Expected: mismatch precision
Caught by: the tolerance of float32
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, features))

    def forward(self, x):
        return (x.half() @ self.weight.T.half()).float()
