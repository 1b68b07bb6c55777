"""Way 49: replaces forward of the Model of the task.

Task: softmax
Expected: mismatch
Caught by: the reference runs in another process
"""

from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        for kind in nn.Module.__subclasses__():
            if kind.__name__ == "Model":
                kind.forward = lambda self, x: x.clone()

    def forward(self, x):
        return x.clone()
