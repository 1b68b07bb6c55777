# verdict: mismatch/scaled
import torch


class ModelNew(torch.nn.Module):
    def __init__(self, size, epsilon):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size))

    def forward(self, x):
        # The norm in place of the root mean square.
        return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True) * self.weight
