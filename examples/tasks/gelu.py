"""Elementwise: the GELU of each element, by its approximation with tanh."""

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nn.functional.gelu(x, approximate="tanh")


def get_inputs():
    return [torch.randn(128, 256)]


def get_init_inputs():
    return []
