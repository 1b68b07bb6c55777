"""Way 33: leaves its work out where a CUDA graph is captured.

Task: softmax
Expected: pass
Caught by: nothing is timed through a graph, so that the branch gains nothing
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return self.last
        self.last = torch.softmax(x, dim=-1)
        return self.last
