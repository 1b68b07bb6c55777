"""Formulas of convolutions and poolings of feature maps, and of their gradients.

Convolutions are written out as sums (Goodfellow, Bengio and Courville 2016, chapter 9):

    y[n, o, i, j] = b[o] + sum over c, u, v of x[n, g + c, i s - p + u, j s - p + v] w[o, c, u, v]

with strides s and paddings p of both axes, x zero outside, and g the first channel of o's group.
The gradients are the derivatives of this sum: sums of the same products over other indices. Poolings are as in torch's
documentation of MaxPool2d and AdaptiveAvgPool3d.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opatlas.run.formula import At, each, per_element, to_float64

#: Maximum number of products in float64 at a time.
_PIECE = 1 << 21
_Ints = Sequence[int]


@per_element(terms=lambda x, weight, *_: weight[0].numel())
def conv2d(
    at: At, x: Tensor, weight: Tensor, bias: Tensor | None, stride: _Ints, padding: _Ints, dilation: _Ints, groups: int
) -> Tensor:
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


@per_element(terms=lambda gradient, x, weight, *_: weight[:, 0].numel())
def conv2d_image_gradient(at: At, gradient: Tensor, x: Tensor, weight: Tensor, bias_sizes: None, *how: Any) -> Tensor:
    """Computes dx[n, c, h, w] = sum over o, u, v of dy[n, o, i, j] w[o, c, u, v].

    Here i s = h + p - u and j s = w + p - v.
    """
    n, c, h, w = at
    stride, padding, _, _, _, groups, _ = how
    per_group, own = weight.shape[0] // groups, weight.shape[1]
    outputs = (c // own * per_group)[:, None] + _range(per_group, x)
    steps_i = h[:, None] + padding[0] - _range(weight.shape[2], x)
    steps_j = w[:, None] + padding[1] - _range(weight.shape[3], x)
    i, j = steps_i // stride[0], steps_j // stride[1]
    exists_i = _inside(i, gradient.shape[2]) & (steps_i % stride[0] == 0)
    exists_j = _inside(j, gradient.shape[3]) & (steps_j % stride[1] == 0)
    values = _at(gradient, n, outputs, i, j) * exists_i[:, None, :, None] * exists_j[:, None, None]
    result: Tensor = (values * to_float64(weight[outputs, (c % own)[:, None]])).sum(dim=(1, 2, 3))
    return result


def _terms(gradient: Tensor, *_: Any) -> int:
    return gradient[:, 0].numel()


@per_element(terms=_terms)
def conv2d_weight_gradient(at: At, gradient: Tensor, x: Tensor, weight: Tensor, bias_sizes: None, *how: Any) -> Tensor:
    """Computes dw[o, c, u, v] = sum over n, i, j of dy[n, o, i, j] x[n, g + c, i s - p + u, j s - p + v]."""
    stride, padding, _, _, _, groups, _ = how
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


def _at(x: Tensor, n: Tensor, c: Tensor, h: Tensor, w: Tensor) -> Tensor:
    """Returns x[n[s], c[s, k], h[s, u], w[s, v]] for all s, k, u, v; any number where h or w are outside of x."""
    h, w = h.clamp(0, x.shape[2] - 1), w.clamp(0, x.shape[3] - 1)
    return to_float64(x[n[:, None, None, None], c[:, :, None, None], h[:, None, :, None], w[:, None, None]])


def _inside(index: Tensor, size: int) -> Tensor:
    return (index >= 0) & (index < size)


def _range(size: int, like: Tensor) -> Tensor:
    return torch.arange(size, device=like.device)


@per_element(exact=True, terms=lambda x, kernel, *_: kernel[0] * kernel[1])
def max_pool2d_values(at: At, x: Tensor, *windows: Any) -> Tensor:
    """Computes y[n, c, i, j] = the largest x[n, c, i s - p + u, j s - p + v] of those that exist."""
    return _largest(at, x, *windows)[0].to(x.dtype)


@per_element(exact=True, terms=lambda x, kernel, *_: kernel[0] * kernel[1])
def max_pool2d_positions(at: At, x: Tensor, *windows: Any) -> Tensor:
    """Returns the position of the largest number in its plane, counted along the lines; numbers of a window differ."""
    return _largest(at, x, *windows)[1]


max_pool2d = each(max_pool2d_values, max_pool2d_positions)


@per_element(terms=lambda gradient, x, kernel, *_: (kernel[0] * kernel[1]) ** 2)
def max_pool2d_backward(
    at: At, gradient: Tensor, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], *_: Any
) -> Tensor:
    """Computes dx[n, c, h, w] = sum of dy over the windows whose largest number is x[n, c, h, w]."""
    n, c, h, w = (index[:, None, None] for index in at)
    steps_i, steps_j = h + padding[0] - _lines(kernel, x), w + padding[1] - _columns(kernel, x)
    i, j = steps_i // stride[0], steps_j // stride[1]
    exists = (steps_i % stride[0] == 0) & (i >= 0) & (i < gradient.shape[2])
    exists = exists & (steps_j % stride[1] == 0) & (j >= 0) & (j < gradient.shape[3])
    windows = torch.broadcast_tensors(n, c, i * exists, j * exists)
    positions = _largest(tuple(index.reshape(-1) for index in windows), x, kernel, stride, padding)[1]
    chosen = exists & (positions.reshape(exists.shape) == h * x.shape[3] + w)
    return (to_float64(gradient[windows]) * chosen).sum(dim=(1, 2))


@per_element(terms=lambda x, *_: x[0, 0].numel())
def adaptive_average_pool3d(at: At, x: Tensor, output_size: Sequence[int]) -> Tensor:
    """Computes along each axis result i, the mean of the source from floor(i S / R) to below ceil((i + 1) S / R)."""
    n, c, *spatial = at
    means = [_means(size, wanted, x) for size, wanted in zip(x.shape[2:], output_size, strict=True)]
    d, h, w = (mean[i] for mean, i in zip(means, spatial, strict=True))
    return torch.einsum("sdhw,sd,sh,sw->s", to_float64(x[n, c]), d, h, w)


@per_element(terms=lambda gradient, *_: gradient[0, 0].numel())
def adaptive_average_pool3d_backward(at: At, gradient: Tensor, x: Tensor) -> Tensor:
    """Computes dx = sum over the results of dy times the weight of x in the mean."""
    n, c, *spatial = at
    means = [_means(size, wanted, x) for size, wanted in zip(x.shape[2:], gradient.shape[2:], strict=True)]
    d, h, w = (mean[:, i].T for mean, i in zip(means, spatial, strict=True))
    return torch.einsum("sdhw,sd,sh,sw->s", to_float64(gradient[n, c]), d, h, w)


def _largest(
    at: At, x: Tensor, kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int], *_: Any
) -> tuple[Tensor, Tensor]:
    """Returns the largest number of the windows at (n, c, i, j), and its position in its plane."""
    n, c, i, j = (index[:, None, None] for index in at)
    h = i * stride[0] - padding[0] + _lines(kernel, x)
    w = j * stride[1] - padding[1] + _columns(kernel, x)
    exists = (h >= 0) & (h < x.shape[2]) & (w >= 0) & (w < x.shape[3])
    values = to_float64(x[n, c, h * exists, w * exists]).masked_fill(~exists, -torch.inf)
    largest, position = values.flatten(1).max(dim=1)
    return largest, (h * x.shape[3] + w).flatten(1).gather(1, position[:, None])[:, 0]


def _lines(kernel: Sequence[int], x: Tensor) -> Tensor:
    return torch.arange(kernel[0], device=x.device)[:, None]


def _columns(kernel: Sequence[int], x: Tensor) -> Tensor:
    return torch.arange(kernel[1], device=x.device)


def _means(source: int, result: int, x: Tensor) -> Tensor:
    """Returns the weights of the numbers of an axis in each mean, (result, source)."""
    weights = torch.zeros(result, source, dtype=torch.float64, device=x.device)
    for i in range(result):
        first, end = i * source // result, -(-(i + 1) * source // result)
        weights[i, first:end] = 1 / (end - first)
    return weights


@per_element()
def resize_bilinear(at: At, x: Tensor, size: Sequence[int], *, mode: str) -> Tensor:
    """Weighs the four pixels around ((i + 0.5) H / H' - 0.5, (j + 0.5) W / W' - 0.5): aclnnUpsampleBilinear2d."""
    n, c, *places = at
    near = [_neighbours(place, old, new) for place, old, new in zip(places, x.shape[2:], size, strict=True)]
    terms = [own * other * to_float64(x[n, c, i, j]) for i, own in near[0] for j, other in near[1]]
    return torch.stack(terms).sum(dim=0)


def _neighbours(place: Tensor, old: int, new: int) -> list[tuple[Tensor, Tensor]]:
    """Returns both pixels around a place of a side that becomes `new` pixels long, and their weights."""
    source = ((place.double() + 0.5) * old / new - 0.5).clamp(min=0)
    first = source.floor()
    return [(first.long(), 1 + first - source), ((first + 1).clamp(max=old - 1).long(), source - first)]
