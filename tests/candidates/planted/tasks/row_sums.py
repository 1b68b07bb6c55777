"""Sums of the rows of matrices of several shapes."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return x.sum(dim=-1)


def get_inputs_dyn_list():
    return [[torch.randn(32, 64)], [torch.randn(3, 64)], [torch.randn(32, 17)], [torch.randn(0, 64)]]


def get_init_inputs():
    return []
