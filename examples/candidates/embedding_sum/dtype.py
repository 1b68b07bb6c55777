# verdict: interface/dtype
import torch


class ModelNew(torch.nn.Module):
    def forward(self, table, indices):
        return table[indices].double().sum(dim=1)
