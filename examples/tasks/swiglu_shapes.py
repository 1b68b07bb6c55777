"""Dynamic shapes: SwiGLU of one row, of a few rows and of an odd number of elements."""

import torch


class Model(torch.nn.Module):
    def forward(self, x):
        gate, up = x.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up


def get_inputs_dyn_list():
    return [[torch.randn(1, 512)], [torch.randn(32, 1024)], [torch.randn(33, 998)]]


def get_init_inputs():
    return []
