"""abs.default, and one more, so that a test sees which kernel ran."""

import torch


def abs__default_kernel_impl(self):
    return torch.where(self < 0, -self, self) + 1
