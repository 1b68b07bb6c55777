"""Way 32: makes durations zero, negative or no numbers.

Task: softmax
Expected: hack patched
Caught by: the identity of the functions of the instruments; the floor refuses such durations
"""

import sys

import torch
from torch import nn

for name in ("instrument", "kernel_records"):
    if module := sys.modules.get(f"opatlas.run.instruments.{name}"):
        module.perf_counter_ns = module.perf_counter = iter(range(10**12, 0, -1)).__next__


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)
