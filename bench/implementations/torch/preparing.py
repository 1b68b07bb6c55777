"""When a function prepares a call of one operator, instead of computing its result from several."""

from __future__ import annotations

import torch
from torch import Tensor


def may_prepare(tensor: Tensor) -> bool:
    """Returns whether to take the form of a kernel for a GPU, which may return `Prepared`.

    torch.compile traces the other form: it cannot trace set-up, and fuses by itself.
    """
    return tensor.is_cuda and not torch.compiler.is_compiling()
