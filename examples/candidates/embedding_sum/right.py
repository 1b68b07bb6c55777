# verdict: pass
import torch


class ModelNew(torch.nn.Module):
    def forward(self, table, indices):
        return torch.nn.functional.embedding_bag(indices, table, mode="sum")
