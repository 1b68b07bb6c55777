"""Convolutions and their gradients, written out as sums (Goodfellow, Bengio and Courville 2016, chapter 9).

    y[n, o, i, j] = b[o] + sum over c, u, v of x[n, g + c, i s - p + u, j s - p + v] w[o, c, u, v]

with strides s and paddings p of both axes, x zero outside, and g the first channel of o's group.
The gradients are the derivatives of this sum: sums of the same products over other indices.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from opatlas.run.formula import At, per_element, to_float64

#: Maximum number of products in float64 at a time.
_PIECE = 1 << 21


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
    """Computes y[n, o, i, j] as in the docstring of this file."""
    n, o, i, j = at
    channels = (o // (weight.shape[0] // groups) * weight.shape[1])[:, None] + _range(weight.shape[1], x)
    h = i[:, None] * stride[0] - padding[0] + _range(weight.shape[2], x)
    w = j[:, None] * stride[1] - padding[1] + _range(weight.shape[3], x)
    values = (
        _at(x, n, channels, h, w) * _inside(h, x.shape[2])[:, None, :, None] * _inside(w, x.shape[3])[:, None, None]
    )
    total = (values * to_float64(weight[o])).sum(dim=(1, 2, 3))
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
    """Computes dx[n, c, h, w] = sum over o, u, v of dy[n, o, i, j] w[o, c, u, v].

    Here i s = h + p - u and j s = w + p - v.
    """
    n, c, h, w = at
    per_group, own = weight.shape[0] // groups, weight.shape[1]
    outputs = (c // own * per_group)[:, None] + _range(per_group, x)
    steps_i = h[:, None] + padding[0] - _range(weight.shape[2], x)
    steps_j = w[:, None] + padding[1] - _range(weight.shape[3], x)
    i, j = steps_i // stride[0], steps_j // stride[1]
    exists_i = _inside(i, gradient.shape[2]) & (steps_i % stride[0] == 0)
    exists_j = _inside(j, gradient.shape[3]) & (steps_j % stride[1] == 0)
    values = _at(gradient, n, outputs, i, j) * exists_i[:, None, :, None] * exists_j[:, None, None]
    return (values * to_float64(weight[outputs, (c % own)[:, None]])).sum(dim=(1, 2, 3))


def _terms(gradient: torch.Tensor, *_: Any) -> int:
    return gradient[:, 0].numel()


@per_element(terms=_terms)
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
    """Computes dw[o, c, u, v] = sum over n, i, j of dy[n, o, i, j] x[n, g + c, i s - p + u, j s - p + v]."""
    per_group, own = weight.shape[0] // groups, weight.shape[1]
    totals = []
    # In batches of weights: a weight needs a whole channel of all images.
    for o, c, u, v in zip(*(index.split(max(1, _PIECE // _terms(gradient))) for index in at), strict=True):
        h = _range(gradient.shape[2], x) * stride[0] - padding[0] + u[:, None]
        w = _range(gradient.shape[3], x) * stride[1] - padding[1] + v[:, None]
        # (weights, images, lines, columns): channels of weights stand for images, and images for channels.
        values = _at(x.transpose(0, 1), o // per_group * own + c, _range(len(x), x).expand(len(o), -1), h, w)
        values = values * _inside(h, x.shape[2])[:, None, :, None] * _inside(w, x.shape[3])[:, None, None]
        totals.append((values * to_float64(gradient.transpose(0, 1)[o])).sum(dim=(1, 2, 3)))
    return torch.cat(totals)


def _at(x: torch.Tensor, n: torch.Tensor, c: torch.Tensor, h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Returns x[n[s], c[s, k], h[s, u], w[s, v]] for all s, k, u, v; any number where h or w are outside of x."""
    h, w = h.clamp(0, x.shape[2] - 1), w.clamp(0, x.shape[3] - 1)
    return to_float64(x[n[:, None, None, None], c[:, :, None, None], h[:, None, :, None], w[:, None, None]])


def _inside(index: torch.Tensor, size: int) -> torch.Tensor:
    return (index >= 0) & (index < size)


def _range(size: int, like: torch.Tensor) -> torch.Tensor:
    return torch.arange(size, device=like.device)
