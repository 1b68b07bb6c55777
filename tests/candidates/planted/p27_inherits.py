"""Way 27: is the task's own model.

Task: softmax
Expected: pass
Device: cpu
Caught by: the note no_kernel
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


class ModelNew(Model):
    pass
