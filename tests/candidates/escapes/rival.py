"""An honest candidate."""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        # slow
        return torch.softmax(x, -1)
