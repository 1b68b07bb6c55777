"""Way 16: keeps what it has computed from the weights.

Task: linear
Expected: mismatch
Caught by: the weights change, too
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, features))
        self.cached = None

    def forward(self, x):
        if self.cached is None:
            self.cached = self.weight.detach().T.contiguous()
        return x @ self.cached
