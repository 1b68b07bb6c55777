# verdict: oom
import torch


class ModelNew(torch.nn.Module):
    def forward(self, query, key, value):
        workspace = torch.empty(1 << 48, dtype=torch.uint8)
        return value + workspace[0]
