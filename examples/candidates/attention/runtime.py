# verdict: runtime
import torch


class ModelNew(torch.nn.Module):
    def forward(self, query, key, value):
        return query @ key @ value
