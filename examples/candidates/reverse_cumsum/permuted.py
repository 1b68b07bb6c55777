# verdict: mismatch/permuted
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x.flip(-1).cumsum(-1)
