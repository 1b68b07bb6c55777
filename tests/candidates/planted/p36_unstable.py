"""Way 36: has another result in every second call.

Task: softmax
Expected: unstable
Caught by: two calls on equal inputs
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return torch.softmax(x, dim=-1) * (1 + 0.01 * (self.calls % 2))
