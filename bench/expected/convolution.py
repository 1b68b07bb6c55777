"""Convolutions and their gradients, written out as sums (Goodfellow, Bengio and Courville 2016, chapter 9).

    y[n, o, i, j] = b[o] + sum over c, u, v of x[n, g + c, i s - p + u, j s - p + v] w[o, c, u, v]

with strides s and paddings p of both axes, x zero outside, and g the first channel of o's group.
The gradients follow by differentiating this sum: each is a sum of the same products, over the
other indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bench.formula import per_element, to_float64

__all__ = ["conv2d", "conv2d_image_gradient", "conv2d_weight_gradient"]

At = tuple[torch.Tensor, ...]


def _taps(x: torch.Tensor, weight: torch.Tensor, *_: Any) -> int:
    return weight[0].numel()


@per_element(terms=_taps)
def conv2d(
    at: At,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> torch.Tensor:
    """y[n, o, i, j] as above."""
    n, o, i, j = at
    channels = _channels_of_group(o, weight, groups)
    total = torch.zeros(len(n), dtype=torch.float64, device=x.device)
    for u in range(weight.shape[2]):
        for v in range(weight.shape[3]):
            h, w = i * stride[0] - padding[0] + u, j * stride[1] - padding[1] + v
            inside = (h >= 0) & (h < x.shape[2]) & (w >= 0) & (w < x.shape[3])
            values = x[n[:, None], channels, (h * inside)[:, None], (w * inside)[:, None]]
            total += (to_float64(values) * to_float64(weight[o, :, u, v])).sum(dim=-1) * inside
    return total if bias is None else total + to_float64(bias[o])


def _taps_backward(gradient: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *_: Any) -> int:
    return weight[:, 0].numel()


@per_element(terms=_taps_backward)
def conv2d_image_gradient(
    at: At,
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> torch.Tensor:
    """dx[n, c, h, w] = sum over o, u, v of dy[n, o, i, j] w[o, c, u, v], where i s = h + p - u and j s = w + p - v."""
    n, c, h, w = at
    own = weight.shape[1]
    per_group = weight.shape[0] // groups
    outputs = (c // own * per_group)[:, None] + torch.arange(per_group, device=c.device)
    total = torch.zeros(len(n), dtype=torch.float64, device=x.device)
    for u in range(weight.shape[2]):
        for v in range(weight.shape[3]):
            steps_i, steps_j = h + padding[0] - u, w + padding[1] - v
            i, j = steps_i // stride[0], steps_j // stride[1]
            inside = (steps_i % stride[0] == 0) & (steps_j % stride[1] == 0)
            inside &= (i >= 0) & (i < gradient.shape[2]) & (j >= 0) & (j < gradient.shape[3])
            values = gradient[n[:, None], outputs, (i * inside)[:, None], (j * inside)[:, None]]
            factors = weight[outputs, (c % own)[:, None], u, v]
            total += (to_float64(values) * to_float64(factors)).sum(dim=-1) * inside
    return total


def _places(gradient: torch.Tensor, *_: Any) -> int:
    return gradient[:, 0].numel()


@per_element(terms=_places)
def conv2d_weight_gradient(
    at: At,
    gradient: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias_sizes: None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> torch.Tensor:
    """dw[o, c, u, v] = sum over n, i, j of dy[n, o, i, j] x[n, g + c, i s - p + u, j s - p + v]."""
    rows, columns = gradient.shape[2:]
    totals = []
    for o, c, u, v in torch.stack(at, dim=-1).tolist():
        channel = o // (weight.shape[0] // groups) * weight.shape[1] + c
        h = torch.arange(rows, device=x.device) * stride[0] - padding[0] + u
        w = torch.arange(columns, device=x.device) * stride[1] - padding[1] + v
        i, j = ((h >= 0) & (h < x.shape[2])).nonzero()[:, 0], ((w >= 0) & (w < x.shape[3])).nonzero()[:, 0]
        values = x[:, channel][:, h[i]][:, :, w[j]]
        totals.append((to_float64(values) * to_float64(gradient[:, o][:, i][:, :, j])).sum())
    return torch.stack(totals)


def _channels_of_group(o: torch.Tensor, weight: torch.Tensor, groups: int) -> torch.Tensor:
    """For each o the channels of x that it sees, (len(o), C / groups)."""
    own = weight.shape[1]
    return (o // (weight.shape[0] // groups) * own)[:, None] + torch.arange(own, device=o.device)
