"""Way 3: returns zeros where the results are small.

Task: faint
Expected: mismatch all-zero
Caught by: the tolerance is relative to the results
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)
