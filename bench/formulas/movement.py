"""Formulas of kernels that move data: the source of each element, as arithmetic on coordinates."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from opatlas.run.formula import At, per_element


@per_element(exact=True)
def copy_into(at: At, destination: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return source[at]


@per_element(exact=True)
def slice_copy(at: At, x: torch.Tensor, offsets: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
    """Computes y[i, j, ...] = x[i + offset 0, j + offset 1, ...]."""
    return x[tuple(index + offset for index, offset in zip(at, offsets, strict=True))]


@per_element(exact=True)
def strided_slice(
    at: At, x: torch.Tensor, begin: Sequence[int], end: Sequence[int], strides: Sequence[int]
) -> torch.Tensor:
    """Computes y[i, j, ...] = x[begin 0 + i stride 0, begin 1 + j stride 1, ...]."""
    return x[tuple(first + index * step for index, first, step in zip(at, begin, strides, strict=True))]


@per_element(exact=True)
def stack(at: At, tensors: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
    """Returns the element of tensor at[axis] at the other coordinates."""
    own = (*at[:axis], *at[axis + 1 :])
    value = torch.empty_like(at[axis], dtype=tensors[0].dtype)
    for number, part in enumerate(tensors):
        inside = (at[axis] == number).nonzero()[:, 0]
        value[inside] = part[tuple(index[inside] for index in own)]
    return value


@per_element(exact=True)
def repeat_interleave(at: At, x: torch.Tensor, repeats: torch.Tensor, dim: int, *, output_size: int) -> torch.Tensor:
    """Repeats line i along `dim` repeats[i] times; a single number holds for every line."""
    ends = repeats.to(torch.int64).expand(x.shape[dim]).cumsum(0)
    line = torch.searchsorted(ends, at[dim], right=True)
    source = (*at[:dim], line, *at[dim + 1 :])
    return x[source]


@per_element(exact=True)
def transpose_copy(at: At, x: torch.Tensor, permutation: Sequence[int]) -> torch.Tensor:
    """Permutes the axes: axis i of the result is axis permutation[i] of x."""
    source = dict(zip(permutation, at, strict=True))
    return x[tuple(source[axis] for axis in range(x.dim()))]


@per_element(exact=True)
def broadcast_to(at: At, x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Computes y = x, broadcast: an axis of size 1 is read at coordinate 0."""
    return _periodic(at, x)


@per_element(exact=True)
def tile(at: At, x: torch.Tensor, repeats: Sequence[int]) -> torch.Tensor:
    """Computes y[i, ...] = x[i mod size, ...]; leading axes that x lacks do not count."""
    return _periodic(at, x)


@per_element(exact=True)
def concatenate(at: At, tensors: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
    """Returns the element of the part whose stretch of `axis` holds the coordinate."""
    start = 0
    value = torch.empty_like(at[0], dtype=tensors[0].dtype)
    for part in tensors:
        size = part.shape[axis]
        inside = ((at[axis] >= start) & (at[axis] < start + size)).nonzero()[:, 0]
        own = [index[inside] - (start if i == axis else 0) for i, index in enumerate(at)]
        value[inside] = part[tuple(own)]
        start += size
    return value


@per_element(exact=True)
def pad(at: At, x: torch.Tensor, padding: Sequence[int]) -> torch.Tensor:
    """Returns x where the coordinates, minus the padding before x, are inside of x; else 0.

    `padding` has the numbers of elements before and after x, for the last axis first.
    """
    before = padding[::2][::-1]
    own = [index - first for index, first in zip(at, before, strict=True)]
    inside = torch.ones_like(at[0], dtype=torch.bool)
    for index, size in zip(own, x.shape, strict=True):
        inside &= (index >= 0) & (index < size)
    value = torch.zeros_like(at[0], dtype=x.dtype)
    value[inside] = x[tuple(index[inside] for index in own)]
    return value


def _periodic(at: At, x: torch.Tensor) -> torch.Tensor:
    last = at[len(at) - x.dim() :]
    value = x[tuple(index % size for index, size in zip(last, x.shape, strict=True))]
    return value.expand(at[0].shape) if at else value
