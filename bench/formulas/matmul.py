"""Formulas of matrix products, as sums."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from opatlas.run.formula import per_element, to_float64


def _common_length(a: Tensor, *_: object, **__: object) -> int:
    return a.shape[-1]


@per_element(terms=_common_length)
def linear(at: tuple[Tensor, ...], a: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes c[i, j] = sum over k of a[i, k] weight[j, k], plus bias[j]."""
    i, j = at
    total = (to_float64(a[i, :]) * to_float64(weight[j, :])).sum(dim=-1)
    return total if bias is None else total + to_float64(bias[j])


@per_element(terms=_common_length)
def batch_matmul(at: tuple[Tensor, ...], a: Tensor, b: Tensor) -> Tensor:
    """Computes c[..., i, j] = sum over k of a[..., i, k] b[..., k, j]; a batch axis of size 1 is broadcast."""
    *batch, i, j = at
    of_row, of_column = (*batch_places(batch, a), i), (*batch_places(batch, b), j)
    return (to_float64(a[of_row]) * to_float64(b.mT[of_column])).sum(dim=-1)


@per_element(terms=_common_length)
def transpose_batch_matmul(
    at: tuple[Tensor, ...],
    input: Tensor,  # noqa: A002 (the call's name)
    weight: Tensor,
    *,
    perm_x1: Sequence[int],
    perm_x2: Sequence[int],
    perm_y: Sequence[int],
    batch_split_factor: int = 1,
) -> Tensor:
    """Computes y[m, b, n] = sum over k of x1[b, m, k] x2[b, k, n], of the permuted operands: aclnnTransposeBatchMatMul.

    batch_split_factor S cuts the product (M, B N) into S parts: (S, M, B N / S).
    """
    x1, x2 = input.permute(*perm_x1), weight.permute(*perm_x2)
    if batch_split_factor > 1:
        part, m, column = at
        column = column + part * (x2.shape[0] * x2.shape[2] // batch_split_factor)
        b, n = column // x2.shape[2], column % x2.shape[2]
    else:
        m, b, n = at
    return (to_float64(x1[b, m]) * to_float64(x2.mT[b, n])).sum(dim=-1)


def batch_places(batch: list[Tensor], operand: Tensor) -> list[Tensor]:
    """Returns the coordinates of the batch of the result in an operand whose batch is broadcast."""
    own = operand.shape[:-2]
    last = batch[len(batch) - len(own) :]
    return [coordinate * (size != 1) for coordinate, size in zip(last, own, strict=True)]
