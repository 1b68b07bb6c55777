"""Formulas of gathers and scatters, as arithmetic on coordinates."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from opatlas.run.formula import At, per_element

from .cache import overwrite

Tensor = torch.Tensor


@per_element(exact=True)
def index_select(at: At, x: Tensor, axis: int, indices: Tensor) -> Tensor:
    """Computes y[..., i, ...] = x[..., indices[i], ...]."""
    source = (*at[:axis], indices[at[axis]].to(torch.int64), *at[axis + 1 :])
    return x[source]


@per_element(exact=True)
def gather_elements(at: At, x: Tensor, axis: int, indices: Tensor) -> Tensor:
    """Computes y[..., i, ...] = x[..., indices[..., i, ...], ...]."""
    source = (*at[:axis], indices[at].to(torch.int64), *at[axis + 1 :])
    return x[source]


def _element_places(x: Tensor, axis: int, indices: Tensor, updates: Tensor | float) -> At:
    """Returns the coordinates of all written elements, in the order of the indices."""
    own = torch.unravel_index(torch.arange(indices.numel(), device=x.device), indices.shape)
    return (*own[:axis], indices.flatten().to(torch.int64), *own[axis + 1 :])


@per_element(exact=True, written=_element_places)
def scatter_elements(at: At, x: Tensor, axis: int, indices: Tensor, updates: Tensor | float) -> Tensor:
    """Computes y[..., indices[..., i, ...], ...] = updates[..., i, ...], and x elsewhere."""
    positions = _flat(_element_places(x, axis, indices, updates), x.shape)
    values = torch.as_tensor(updates, dtype=x.dtype, device=x.device).expand(indices.shape)
    return overwrite(at, x, x.dim(), positions, lambda i: values[torch.unravel_index(i, indices.shape)])


def _row_places(x: Tensor, indices: Tensor, updates: Tensor) -> At:
    return tuple(indices.reshape(-1, indices.shape[-1]).to(torch.int64).T)


@per_element(exact=True, written=_row_places)
def scatter_nd_update(at: At, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    """Computes y[indices[i, ...]] = updates[i], and x elsewhere (TensorFlow's scatter_nd_update)."""
    axes = indices.shape[-1]
    rows = updates.reshape(-1, *x.shape[axes:])
    return overwrite(at, x, axes, _flat(_row_places(x, indices, updates), x.shape), lambda *source: rows[source])


def _put_places(x: Tensor, indices: Sequence[Tensor | None], values: Tensor) -> At:
    """Returns the indices of all written elements; 0 along the axes before them, which are written whole."""
    tensors = torch.broadcast_tensors(*(index for index in indices if index is not None))
    flat = [index.flatten().to(torch.int64) for index in tensors]
    return (*[torch.zeros_like(flat[0])] * (len(indices) - len(flat)), *flat)


@per_element(exact=True, written=_put_places)
def index_put(at: At, x: Tensor, indices: Sequence[Tensor | None], values: Tensor) -> Tensor:
    """Computes y[a, indices 0 [p], ..., b] = values[a, p, b], and x elsewhere: numpy's assignment by arrays."""
    first = sum(index is None for index in indices)
    count = len(indices) - first
    shape = torch.broadcast_shapes(*(index.shape for index in indices if index is not None))
    whole = values.expand(*x.shape[:first], *shape, *x.shape[first + count :])

    def value_at(p: Tensor, *rest: Tensor) -> Tensor:
        source = (*rest[:first], *torch.unravel_index(p, shape), *rest[first:])
        return whole[source]

    # `overwrite` takes the indexed axes first.
    order = [*range(first, first + count), *range(first), *range(first + count, x.dim())]
    moved = x.permute(order)
    positions = _flat(_put_places(x, indices, values)[first:], moved.shape)
    return overwrite(tuple(at[axis] for axis in order), moved, count, positions, value_at)


def _flat(coordinates: At, shape: Sequence[int]) -> Tensor:
    """Returns the position of each element in the flattened axes of `coordinates`."""
    sizes = shape[: len(coordinates)]
    positions = torch.zeros_like(coordinates[0])
    for i, index in enumerate(coordinates):
        positions = positions + index * prod(sizes[i + 1 :])
    return positions
