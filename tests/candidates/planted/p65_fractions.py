"""Way 65: returns fractions for a task of whole numbers that prescribes no dtype.

Task: ranks
Expected: mismatch
Caught by: fractions are compared as what they are
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.argsort(-1).argsort(-1).float() + 0.4
