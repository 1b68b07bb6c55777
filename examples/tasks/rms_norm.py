"""Norm: the root mean square over the last axis, with a weight."""

import torch


class Model(torch.nn.Module):
    def __init__(self, size, epsilon):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(size) + 0.5)
        self.epsilon = epsilon

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon) * self.weight


def get_inputs():
    return [torch.randn(64, 384)]


def get_init_inputs():
    return [384, 1e-6]
