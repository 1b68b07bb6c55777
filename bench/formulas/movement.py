"""Formulas of kernels that move data: the source of each element, as arithmetic on coordinates.

Blocked layouts follow CANN's documentation of data formats; padding in the last block of an axis is 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from opatlas.run.formula import At, each, per_element
from opatlas.run.result_check import Formula


@per_element(exact=True)
def copy_into(at: At, destination: Tensor, source: Tensor) -> Tensor:
    return source[at]


@per_element(exact=True)
def slice_copy(at: At, x: Tensor, offsets: Sequence[int], sizes: Sequence[int]) -> Tensor:
    """Computes y[i, j, ...] = x[i + offset 0, j + offset 1, ...]."""
    return x[tuple(index + offset for index, offset in zip(at, offsets, strict=True))]


@per_element(exact=True)
def strided_slice(at: At, x: Tensor, begin: Sequence[int], end: Sequence[int], strides: Sequence[int]) -> Tensor:
    """Computes y[i, j, ...] = x[begin 0 + i stride 0, begin 1 + j stride 1, ...]."""
    return x[tuple(first + index * step for index, first, step in zip(at, begin, strides, strict=True))]


@per_element(exact=True)
def stack(at: At, tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Returns the element of tensor at[axis] at the other coordinates."""
    own = (*at[:axis], *at[axis + 1 :])
    value = torch.empty_like(at[axis], dtype=tensors[0].dtype)
    for number, part in enumerate(tensors):
        inside = (at[axis] == number).nonzero()[:, 0]
        value[inside] = part[tuple(index[inside] for index in own)]
    return value


@per_element(exact=True)
def repeat_interleave(at: At, x: Tensor, repeats: Tensor, dim: int, *, output_size: int) -> Tensor:
    """Repeats line i along `dim` repeats[i] times; a single number holds for every line."""
    ends = repeats.to(torch.int64).expand(x.shape[dim]).cumsum(0)
    line = torch.searchsorted(ends, at[dim], right=True)
    source = (*at[:dim], line, *at[dim + 1 :])
    return x[source]


@per_element(exact=True)
def transpose_copy(at: At, x: Tensor, permutation: Sequence[int]) -> Tensor:
    """Permutes the axes: axis i of the result is axis permutation[i] of x."""
    source = dict(zip(permutation, at, strict=True))
    return x[tuple(source[axis] for axis in range(x.dim()))]


@per_element(exact=True)
def broadcast_to(at: At, x: Tensor, shape: Sequence[int]) -> Tensor:
    """Computes y = x, broadcast: an axis of size 1 is read at coordinate 0."""
    return _periodic(at, x)


@per_element(exact=True)
def tile(at: At, x: Tensor, repeats: Sequence[int]) -> Tensor:
    """Computes y[i, ...] = x[i mod size, ...]; leading axes that x lacks do not count."""
    return _periodic(at, x)


@per_element(exact=True)
def concatenate(at: At, tensors: Sequence[Tensor], axis: int) -> Tensor:
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


def split_into(count: int) -> Formula:
    """Makes the formula of a split into so many parts; each begins behind the parts before it."""

    def part(number: int) -> Formula:
        @per_element(exact=True)
        def split(at: At, x: Tensor, sizes: Sequence[int], axis: int) -> Tensor:
            source = (*at[:axis], at[axis] + sum(sizes[:number]), *at[axis + 1 :])
            return x[source]

        return split

    return each(*map(part, range(count)))


@per_element(exact=True)
def pad(at: At, x: Tensor, padding: Sequence[int]) -> Tensor:
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


def _periodic(at: At, x: Tensor) -> Tensor:
    last = at[len(at) - x.dim() :]
    value = x[tuple(index % size for index, size in zip(last, x.shape, strict=True))]
    return value.expand(at[0].shape) if at else value


@per_element(exact=True)
def format_cast(at: At, x: Tensor, destination: Tensor) -> Tensor:
    """Converts between a plain and a blocked layout.

    NC1HWC0: channel c is c mod C0 in block c / C0. FRACTAL_NZ: column k likewise, line m is m mod 16, block m / 16.
    FRACTAL_Z: output o is o mod 16 in block o / 16, position (c1, h, w) is (c1 H + h) W + w.
    """
    if x.device.type == "npu":
        return x[at]  # Both show their logical shapes.
    if destination.dim() > x.dim() or (destination.dim() == x.dim() and _is_weight(x.shape, destination.shape)):
        plain = _plain_place(at, x.shape, destination.shape)
        inside = torch.ones_like(at[0], dtype=torch.bool)
        for index, size in zip(plain, x.shape, strict=True):
            inside &= index < size
        return x[tuple(index * inside for index in plain)] * inside
    return x[_block_place(at, x.shape, destination.shape)]


@per_element(exact=True)
def strided_copy(at: At, x: Tensor, shape: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """Computes y[i, j, ...] = storage[offset + i stride 0 + j stride 1 + ...]."""
    return x.reshape(-1)[sum((i * step for i, step in zip(at, stride, strict=True)), torch.tensor(offset))]


@per_element(exact=True)
def lower_triangle(at: At, x: Tensor, diagonal: int) -> Tensor:
    """Computes y[..., i, j] = x[..., i, j] where j <= i + diagonal, else 0."""
    return x[at] * (at[-1] <= at[-2] + diagonal)


@per_element(exact=True)
def upper_triangle(at: At, x: Tensor, diagonal: int) -> Tensor:
    """Computes y[..., i, j] = x[..., i, j] where j >= i + diagonal, else 0."""
    return x[at] * (at[-1] >= at[-2] + diagonal)


@per_element(exact=True)
def nonzero(at: At, x: Tensor) -> Tensor:
    """Returns in line k the coordinates of the k-th number that is not 0, in the order of the last axis first."""
    line, axis = at
    position = torch.arange(x.numel(), device=x.device)[x.reshape(-1) != 0][line]
    sizes = torch.tensor(x.shape, device=x.device)
    steps = torch.tensor([x[(0,) * (i + 1)].numel() for i in range(x.dim())], device=x.device)
    return position // steps[axis] % sizes[axis]


def _plain_place(at: At, plain: torch.Size, blocked: torch.Size) -> At:
    """Returns coordinates in the plain tensor for coordinates in the blocked one."""
    if len(blocked) == len(plain) + 2:
        *batch, k1, m1, m0, k0 = at
        return (*batch, m1 * blocked[-2] + m0, k1 * blocked[-1] + k0)
    if len(blocked) == len(plain) + 1:
        n, c1, h, w, c0 = at
        return n, c1 * blocked[-1] + c0, h, w
    position, o1, o0, c0 = at
    height, width = plain[2:]
    c1, h, w = position // (height * width), position // width % height, position % width
    return o1 * blocked[2] + o0, c1 * blocked[3] + c0, h, w


def _block_place(at: At, blocked: torch.Size, plain: torch.Size) -> At:
    """Returns coordinates in the blocked tensor for coordinates in the plain one."""
    if len(blocked) == len(plain) + 2:
        *batch, m, k = at
        return (*batch, k // blocked[-1], m // blocked[-2], m % blocked[-2], k % blocked[-1])
    if len(blocked) == len(plain) + 1:
        n, c, h, w = at
        return n, c // blocked[-1], h, w, c % blocked[-1]
    o, c, h, w = at
    position = (c // blocked[3] * plain[2] + h) * plain[3] + w
    return position, o // blocked[2], o % blocked[2], c % blocked[3]


def _is_weight(plain: torch.Size, blocked: torch.Size) -> bool:
    o, c, h, w = plain
    blocks_of_c, blocks_of_o = (c + blocked[3] - 1) // blocked[3], (o + 15) // 16
    return blocked[:3] == (blocks_of_c * h * w, blocks_of_o, 16)
