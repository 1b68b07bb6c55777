"""Results so small that an absolute limit of 1e-3 lets zeros pass."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.sin(x) * 1e-5


def get_inputs():
    return [torch.randn(64, 64)]


def get_init_inputs():
    return []
