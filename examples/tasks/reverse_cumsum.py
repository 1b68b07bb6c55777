"""Scan: the sum of each element and all elements behind it."""

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return x.flip(-1).cumsum(-1).flip(-1)


def get_inputs():
    return [torch.randn(32, 500)]


def get_init_inputs():
    return []
