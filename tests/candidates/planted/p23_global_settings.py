"""Way 23: changes settings of torch, so that the baseline slows down or it gains.

Task: linear
Device: cpu
Expected: pass
Notes: cuda.matmul
Process: own
Caught by: the baseline runs in another process; settings are told
"""

import torch
from torch import nn

torch.set_num_threads(torch.get_num_threads() + 1)
torch.backends.cudnn.benchmark = True
torch.backends.cuda.matmul.allow_tf32 = True


class ModelNew(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, features))

    def forward(self, x):
        return x @ self.weight.T
