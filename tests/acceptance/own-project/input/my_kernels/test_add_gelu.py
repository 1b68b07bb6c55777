import math

import torch

from opatlas import pointwise, replays


def in_torch(x, residual, scale):
    return torch.nn.functional.gelu(x + residual) * scale


@pointwise
def add_gelu(x, residual, scale):
    y = x + residual
    return y * 0.5 * (1 + torch.erf(y / math.sqrt(2))) * scale


@replays("AddGelu", npu=None)
def test_add_gelu(row, replay):
    x, residual = row.inputs()
    replay(in_torch, x, residual, scale=2.0, expected=add_gelu)
