"""Product of two matrices."""

import torch


class Model(torch.nn.Module):
    def forward(self, a, b):
        return a @ b


def get_inputs():
    return [torch.randn(128, 192), torch.randn(192, 256)]


def get_init_inputs():
    return []
