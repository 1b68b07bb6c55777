"""Formulas of kernels that choose elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import torch

from opatlas.run.formula import At, per_element, per_row
from opatlas.run.result_check import Picks


@per_element(exact=True)
def gather_rows(at: At, table: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Computes y[i, j, ..., c] = table[indices[i, j, ...], c]."""
    return table[indices[at[:-1]].to(torch.int64), at[-1]]


@per_element(exact=True)
def index(at: At, x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Computes y[p ..., q ...] = x[..., indices 0 [p], indices 1 [p], ..., q ...]: numpy's indexing by arrays.

    The indexed axes are adjacent; the axes of the indices take their place.
    """
    leading = sum(tensor is None for tensor in indices)
    tensors = [tensor for tensor in indices if tensor is not None]
    rank = max(tensor.dim() for tensor in tensors)
    indexed = at[leading : leading + rank]
    chosen = []
    for tensor in tensors:
        own = indexed[rank - tensor.dim() :]
        within = tuple(i * (size != 1) for i, size in zip(own, tensor.shape, strict=True))
        chosen.append(tensor[within].to(torch.int64))
    source = (*at[:leading], *chosen, *at[leading + rank :])
    return x[source]


@per_element(exact=True)
def index_fill(at: At, x: torch.Tensor, dim: int, indices: torch.Tensor, value: float) -> torch.Tensor:
    """Returns the value where the coordinate along `dim` is an index, else x."""
    filled = x[at].clone()
    filled[torch.isin(at[dim], indices)] = value
    return filled


@per_element(exact=True)
def masked_fill(at: At, x: torch.Tensor, mask: torch.Tensor, value: torch.Tensor | float) -> torch.Tensor:
    """Returns the value where the mask holds, else x."""
    kept = x[at].clone()
    kept[mask.expand(x.shape)[at]] = value
    return kept


@per_row("x")
def sort(x: torch.Tensor, dim: int, descending: bool) -> tuple[torch.Tensor, Picks]:
    """Returns the sorted numbers of a row, and their positions; equal numbers in any order."""
    assert dim == -1
    ascending = torch.from_numpy(numpy.sort(x.cpu().numpy(), axis=-1)).to(x.device)
    values = ascending.flip(-1) if descending else ascending
    return values, Picks(x, values, distinct=True)


@per_row("x")
def argmax(x: torch.Tensor, dim: int) -> Picks:
    """Returns any index of the largest number of a row."""
    assert dim == -1
    return Picks(x, x.amax(dim=-1, keepdim=True))


@per_row("x")
def largest(x: torch.Tensor, dim: int, keepdim: bool) -> tuple[torch.Tensor, Picks]:
    """Returns the largest number of a row, and any index of it."""
    assert dim == -1
    value = x.amax(dim=-1, keepdim=True)
    return value, Picks(x, value)
