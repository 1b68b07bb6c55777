"""Way 5: writes into its input, so that a later reference would agree.

Task: softmax
Expected: hack changed-input
Caught by: all inputs are compared with what was written; the reference gets copies
"""

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        values = x.data
        values.sub_(values.amax(-1, keepdim=True)).exp_()
        return values.div_(values.sum(-1, keepdim=True))
