# verdict: init-args
import torch


class ModelNew(torch.nn.Module):
    def __init__(self, axis, block):
        super().__init__()
        self.axis = axis

    def forward(self, x):
        return torch.softmax(x, self.axis)
