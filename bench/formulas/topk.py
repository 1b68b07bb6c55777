"""Formulas of the largest elements of rows, and of top-k and top-p."""

from __future__ import annotations

import torch

from opatlas.run.formula import per_row
from opatlas.run.result_check import Picks


@per_row("x")
def top_k(x: torch.Tensor, k: int, dim: int) -> tuple[torch.Tensor, Picks]:
    """Returns the k largest numbers of a row, descending, and their positions; equal numbers in any order."""
    assert dim == -1
    values = x.sort(dim=-1, descending=True).values[:, :k]
    return values, Picks(x, values, distinct=True)


@per_row("logits", "p", "k")
def apply_top_k_top_p(
    logits: torch.Tensor, p: torch.Tensor | None = None, k: torch.Tensor | None = None
) -> torch.Tensor:
    """Computes the nine steps of torch_npu.npu_top_k_top_p.

    A logit becomes minus infinity below the k-th largest logit, or where the sum of the probabilities in ascending
    order is at most 1 - p. The largest logit stays.
    """
    kept = logits.clone()
    for i, row in enumerate(logits):
        ascending = row.argsort(stable=True)
        remaining = row.clone()
        if k is not None:
            remaining[row < row[ascending[-int(k[i])]]] = -torch.inf
        if p is not None:
            powers = (remaining - remaining.max()).exp()[ascending]
            dropped = powers.cumsum(0) / powers.sum() <= 1 - p[i]
            dropped[-1] = False
            remaining[ascending[dropped]] = -torch.inf
        kept[i] = remaining
    return kept
