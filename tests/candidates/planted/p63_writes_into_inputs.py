"""Way 63: changes the inputs in the memory that it shares with the court, so that a reference agrees with nothing done.

Task: softmax
Expected: mismatch
Process: own
Caught by: the court makes the inputs of a call again
"""

import gc

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        for each in gc.get_objects():
            if type(each).__name__ == "SharedMemory":
                each._bytes[: x.numel() * 4] = bytes(x.numel() * 4)
        return torch.full_like(x, 1 / x.shape[-1])
