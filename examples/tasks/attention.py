"""Causal attention of one layer."""

import torch


class Model(torch.nn.Module):
    def forward(self, query, key, value):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def get_inputs():
    return [torch.randn(1, 4, 64, 32) for _ in range(3)]


def get_init_inputs():
    return []
