"""Way 27: is the task's own model.

Task: softmax
Expected: rule inherited_forward
Static: rule inherited_forward
Device: cpu
Caught by: the rule inherited_forward
"""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)


class ModelNew(Model):
    pass
