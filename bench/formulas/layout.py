"""Formulas of layouts and of selections by position, as arithmetic on coordinates.

Blocked layouts follow CANN's documentation of data formats; padding in the last block of an axis is 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from opatlas.run.formula import At, per_element


@per_element(exact=True)
def format_cast(at: At, x: torch.Tensor, destination: torch.Tensor) -> torch.Tensor:
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
def strided_copy(at: At, x: torch.Tensor, shape: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """Computes y[i, j, ...] = storage[offset + i stride 0 + j stride 1 + ...]."""
    return x.reshape(-1)[sum((i * step for i, step in zip(at, stride, strict=True)), torch.tensor(offset))]


@per_element(exact=True)
def lower_triangle(at: At, x: torch.Tensor, diagonal: int) -> torch.Tensor:
    """Computes y[..., i, j] = x[..., i, j] where j <= i + diagonal, else 0."""
    return x[at] * (at[-1] <= at[-2] + diagonal)


@per_element(exact=True)
def upper_triangle(at: At, x: torch.Tensor, diagonal: int) -> torch.Tensor:
    """Computes y[..., i, j] = x[..., i, j] where j >= i + diagonal, else 0."""
    return x[at] * (at[-1] >= at[-2] + diagonal)


@per_element(exact=True)
def nonzero(at: At, x: torch.Tensor) -> torch.Tensor:
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
