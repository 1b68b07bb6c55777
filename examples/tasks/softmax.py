"""Softmax over the last axis."""

import torch


class Model(torch.nn.Module):
    def __init__(self, axis):
        super().__init__()
        self.axis = axis

    def forward(self, x):
        return torch.softmax(x, self.axis)


def get_inputs():
    return [4 * torch.randn(64, 500)]


def get_init_inputs():
    return [-1]
