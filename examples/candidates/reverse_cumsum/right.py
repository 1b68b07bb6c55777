# verdict: pass
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x + x.sum(-1, keepdim=True) - x.cumsum(-1)
