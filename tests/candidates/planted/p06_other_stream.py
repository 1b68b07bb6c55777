"""Way 6: works on a stream of its own, which events on the current stream do not time.

Task: softmax
Expected: pass
Device: cuda
Caught by: the profiler's records have the kernels of all streams; the rule stream tells it
"""

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.stream = torch.cuda.Stream()

    def forward(self, x):
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(20):
                result = torch.softmax(x, dim=-1)
        torch.cuda.current_stream().wait_stream(self.stream)
        return result
