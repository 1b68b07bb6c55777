# verdict: interface/shape
import torch


class ModelNew(torch.nn.Module):
    def forward(self, table, indices):
        return table[indices].sum(dim=1, keepdim=True)
