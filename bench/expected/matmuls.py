"""Matrix products, written out as sums."""

from __future__ import annotations

import torch

from bench.formula import per_element, to_float64

__all__ = ["batch_matmul", "matmul"]


def _common_length(a: torch.Tensor, *_: object) -> int:
    return a.shape[-1]


@per_element(terms=_common_length)
def matmul(
    at: tuple[torch.Tensor, ...], a: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """c[i, j] = sum over k of a[i, k] weight[j, k], plus bias[j]."""
    i, j = at
    total = (to_float64(a[i, :]) * to_float64(weight[j, :])).sum(dim=-1)
    return total if bias is None else total + to_float64(bias[j])


@per_element(terms=_common_length)
def batch_matmul(at: tuple[torch.Tensor, ...], a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """c[..., i, j] = sum over k of a[..., i, k] b[..., k, j]; a batch axis of size 1 serves all."""
    *batch, i, j = at
    of_row, of_column = (*_within(batch, a), i), (*_within(batch, b), j)
    return (to_float64(a[of_row]) * to_float64(b.mT[of_column])).sum(dim=-1)


def _within(batch: list[torch.Tensor], operand: torch.Tensor) -> list[torch.Tensor]:
    """The coordinates of the result's batch, in an operand whose batch is broadcast."""
    own = operand.shape[:-2]
    last = batch[len(batch) - len(own) :]
    return [coordinate * (size != 1) for coordinate, size in zip(last, own, strict=True)]
