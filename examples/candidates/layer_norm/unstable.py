# verdict: unstable
import random

import torch


def layer_norm_torch(x, epsilon):
    """Stands for sums that race: the result differs a little from call to call."""
    wrong = 1 + 0.02 * random.SystemRandom().random()
    return torch.nn.functional.layer_norm(x, x.shape[-1:], eps=epsilon) * wrong
