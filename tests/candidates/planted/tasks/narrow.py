"""Results that are nearly the same for all inputs, in 16 bits."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.sigmoid(x * 0.01)


def get_inputs():
    return [torch.randn(64, 64).to(torch.bfloat16)]


def get_init_inputs():
    return []
