"""Way 44: keeps the results of inputs that it knows by a hash of many elements.

Task: softmax
Device: cpu
Expected: pass
Caught by: nothing: no call has inputs that it knows, so that each result is computed
"""

import torch
from torch import nn

stored = {}


class ModelNew(nn.Module):
    def forward(self, x):
        key = hash(x.reshape(-1)[::2].numpy().tobytes())
        if key not in stored:
            stored[key] = torch.softmax(x, -1)
        return stored[key]
