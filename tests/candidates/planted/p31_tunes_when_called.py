"""Way 31: tries its configurations in a call, and leaves one behind.

Task: softmax
Expected: pass
Notes: torch threads
Caught by: the first call is set-up and not timed; settings are told
"""

import time

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.threads = 0

    def forward(self, x):
        if not self.threads:
            took = {}
            for threads in (torch.get_num_threads() + 1, torch.get_num_threads() + 2):
                torch.set_num_threads(threads)
                start = time.perf_counter()
                torch.softmax(x, dim=-1)
                took[threads] = time.perf_counter() - start
            self.threads = min(took, key=took.get)
        return torch.softmax(x, dim=-1)
