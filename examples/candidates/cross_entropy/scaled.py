# verdict: mismatch/other
import torch


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        return torch.nn.functional.cross_entropy(predictions, targets, reduction="sum")
