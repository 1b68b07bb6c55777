"""Kernels that move data: copies, where torch itself may return views."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def slice_copy(x: torch.Tensor, offsets: Sequence[int], sizes: Sequence[int]) -> torch.Tensor:
    """Returns the block of `sizes` that starts at `offsets`."""
    block = x[tuple(slice(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))]
    return block.clone(memory_format=torch.contiguous_format)


def strided_slice(x: torch.Tensor, begin: Sequence[int], end: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
    """Returns the elements of each axis from `begin` to before `end`, `strides` apart."""
    return x[tuple(map(slice, begin, end, strides))].clone(memory_format=torch.contiguous_format)


def transpose_copy(x: torch.Tensor, permutation: Sequence[int]) -> torch.Tensor:
    """Permutes the axes: axis i of the result is axis permutation[i] of x."""
    return x.permute(*permutation).clone(memory_format=torch.contiguous_format)


def broadcast_to(x: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Returns x, repeated along its axes of size 1 and along new leading axes."""
    return x.expand(*shape).clone(memory_format=torch.contiguous_format)
