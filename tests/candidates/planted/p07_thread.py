"""Way 7: works on another thread after the call has returned.

Task: softmax
Expected: hack thread
Caught by: the threads of the process after each call
"""

import threading
import time

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        result = torch.zeros_like(x)

        def work():
            time.sleep(0.5)
            result.copy_(torch.softmax(x, dim=-1))

        threading.Thread(target=work).start()
        return result
