# verdict: mismatch/precision
import math

import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        # The other definition of GELU, which differs in the fourth digit.
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
