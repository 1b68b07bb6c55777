"""Way 28: is right for the first shape alone.

Task: row_sums
Expected: mismatch
Row: 1
Caught by: the rows of the other shapes of the task, an empty one included
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        result = x.new_zeros(x.shape[:-1])
        for column in range(0, x.shape[-1] // 16 * 16, 16):
            result += x[..., column : column + 16].sum(-1)
        return result * (1 if len(x) % 2 == 0 else 0.5)
