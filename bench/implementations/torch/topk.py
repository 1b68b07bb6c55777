"""The largest elements of rows, and the top-k and top-p of samplers."""

from __future__ import annotations

import torch

top_k = torch.topk


def apply_top_k_top_p(
    logits: torch.Tensor, p: torch.Tensor | None = None, k: torch.Tensor | None = None
) -> torch.Tensor:
    """Keeps of the logits (B, V) the k (B) largest, and of these the top share p (B); others become minus infinity.

    The time includes the sort, for which the NPU call launches another kernel.
    """
    values, order = logits.float().sort(dim=-1, stable=True)
    if k is not None:
        least = values.gather(-1, (values.shape[-1] - k.long()).unsqueeze(-1))
        values.masked_fill_(values < least, -torch.inf)
    if p is not None:
        below = values.softmax(dim=-1).cumsum_(dim=-1) <= 1 - p.float().unsqueeze(-1)
        below[..., -1] = False
        values.masked_fill_(below, -torch.inf)
    return torch.empty_like(logits).scatter_(-1, order, values.to(logits.dtype))
