# verdict: interface/none
import torch


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        torch.nn.functional.cross_entropy(predictions, targets)
