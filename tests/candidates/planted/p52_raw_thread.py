"""Way 52: works on a thread that Python's module of threads does not list.

Task: softmax
Expected: hack thread
Caught by: the frames of all threads
"""

import _thread
import time

import torch
from torch import nn


def work(x, out):
    time.sleep(0.02)
    torch.softmax(x, -1, out=out)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.full_like(x, 0.5)
        _thread.start_new_thread(work, (x, out))
        return out
