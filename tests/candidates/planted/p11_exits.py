"""Way 11: prints a verdict and ends the process with success.

Task: softmax
Expected: crash
Device: cpu
Caught by: the verdict is that of pytest's process; an exit is a crash
"""

import os

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        os.write(1, b"1 passed: measured 0.1 us\n")
        os._exit(0)
