import torch


def kernel(x, residual, scale):
    return torch.nn.functional.gelu(x.add(residual)).mul_(scale)
