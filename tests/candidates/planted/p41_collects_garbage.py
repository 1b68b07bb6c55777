"""Way 41: computes in a callback of garbage collection.

Task: softmax
Expected: hack hook
Process: own
Caught by: the callbacks of garbage collection
"""

import gc

import torch
from torch import nn

pending = []


def collected(phase, info):
    while pending:
        x, out = pending.pop()
        torch.softmax(x, -1, out=out)


gc.callbacks.append(collected)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        pending.append((x, out))
        return out
