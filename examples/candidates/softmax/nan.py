# verdict: mismatch/nan
import torch


class ModelNew(torch.nn.Module):
    def __init__(self, axis):
        super().__init__()
        self.axis = axis

    def forward(self, x):
        # Without the largest element of the row, the exponentials overflow.
        large = torch.exp(40 * x)
        return large / large.sum(self.axis, keepdim=True)
