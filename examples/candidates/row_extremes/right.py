# verdict: pass
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        indices = x.argmax(-1)
        return x.gather(-1, indices[:, None])[:, 0], indices
