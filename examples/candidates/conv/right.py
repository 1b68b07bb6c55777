# verdict: pass
import torch
from torch.nn import functional


class ModelNew(torch.nn.Module):
    def __init__(self, channels_in, channels_out, size):
        super().__init__()
        self.conv = torch.nn.Conv2d(channels_in, channels_out, size, padding=size // 2)

    def forward(self, images):
        weight = self.conv.weight.flatten(1)
        columns = functional.unfold(images, self.conv.kernel_size, padding=self.conv.padding)
        found = weight @ columns + self.conv.bias[:, None]
        return found.unflatten(-1, images.shape[-2:])
