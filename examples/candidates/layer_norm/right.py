# verdict: pass
import torch


def layer_norm_torch(x, epsilon):
    """A function in AKG's form: the inputs of the task, then the arguments of Model."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=epsilon)
