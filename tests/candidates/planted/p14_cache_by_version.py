"""Way 14: keeps results by the address and the version of the input.

Task: softmax
Expected: hack stale-result
Caught by: writes between calls bump no version
"""

import torch
from torch import nn

KEPT = {}


class ModelNew(nn.Module):
    def forward(self, x):
        key = x.data_ptr(), x._version
        if key not in KEPT:
            KEPT[key] = torch.softmax(x, dim=-1)
        return KEPT[key].clone()
