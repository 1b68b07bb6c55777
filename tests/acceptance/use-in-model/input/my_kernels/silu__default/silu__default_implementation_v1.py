"""silu.default; writes down the shapes of its calls, so that a test sees when it ran."""

from pathlib import Path

import torch


def silu__default_kernel_impl(self):
    with open(Path(__file__).with_name("calls.txt"), "a") as calls:
        print(tuple(self.shape), file=calls)
    return self / (1 + torch.exp(-self))
