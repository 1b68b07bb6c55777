"""Formulas of a training step: losses, gradients, dropout, the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from opatlas.run.formula import At, on_lists, per_element, per_row, pointwise, to_float64

from ..implementations._calls import ApplyAdamW, takes
from .indexing import flat


@per_row("gradient", "x")
def swiglu_backward(gradient: Tensor, x: Tensor, dim: int) -> Tensor:
    """Computes y = a s(a) b with s(a) = 1 / (1 + exp(-a)): dy/da = s(a) (1 + a (1 - s(a))) b and dy/db = a s(a)."""
    assert dim == -1
    half = x.shape[-1] // 2
    gate, up = x[:, :half], x[:, half:]
    sigmoid = 1 / (1 + (-gate).exp())
    return torch.cat([gradient * up * sigmoid * (1 + gate * (1 - sigmoid)), gradient * gate * sigmoid], dim=-1)


@pointwise
def threshold_backward(gradient: Tensor, x: Tensor, threshold: float) -> Tensor:
    """Returns dy where x is above the threshold, else 0."""
    return gradient * (x > threshold)


@per_row("x")
def log_softmax(x: Tensor, dim: int) -> Tensor:
    """Returns x - m - ln(sum of exp(x - m)), m the largest."""
    assert dim == -1
    shifted = x - x.amax(dim=-1, keepdim=True)
    return shifted - shifted.exp().sum(dim=-1, keepdim=True).log()


@per_row("gradient", "result")
def log_softmax_backward(gradient: Tensor, result: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    """Computes dy[i]/dx[j] = (i = j) - exp(y[j]), so dx = dy - exp(y) (sum of dy)."""
    assert dim == -1
    return gradient - result.exp() * gradient.sum(dim=-1, keepdim=True)


@per_element()
def nll_loss(at: At, x: Tensor, target: Tensor, weight: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Returns - (sum over n of w[t[n]] x[n, t[n]]) / (sum over n of w[t[n]]), and the latter sum."""
    lines = torch.arange(len(target), device=x.device)
    weights = to_float64(weight[target.long()])
    return -(weights * to_float64(x[lines, target.long()])).sum() / weights.sum(), weights.sum()


@per_element(written=lambda gradient, x, target, *_: (torch.arange(len(x), device=x.device), target.long()))
def nll_loss_backward(at: At, gradient: Tensor, x: Tensor, target: Tensor, weight: Tensor, *_: Any) -> Tensor:
    """Computes dx[n, c] = - w[c] dL / (sum of the targets' weights) where c is the target of n, else 0."""
    n, c = at
    share = to_float64(weight[c]) / to_float64(weight[target.long()]).sum()
    return -to_float64(gradient) * share * (target[n] == c)


@per_element(written=lambda gradient, indices, *_: (indices.reshape(-1).long(),))
def embedding_backward(at: At, gradient: Tensor, indices: Tensor, *_: Any) -> Tensor:
    """Computes dw[v, d] = the sum of dy[i, d] over the positions i whose index is v."""
    v, d = at
    lines = gradient.reshape(-1, gradient.shape[-1])
    ordered, positions = indices.reshape(-1).long().sort()
    first, end = torch.searchsorted(ordered, v), torch.searchsorted(ordered, v, right=True)
    sample = torch.arange(len(v), device=v.device).repeat_interleave(end - first)
    rank = torch.arange(len(sample), device=v.device) - ((end - first).cumsum(0) - (end - first))[sample]
    terms = to_float64(lines[positions[first[sample] + rank], d[sample]])
    return torch.zeros(len(v), dtype=torch.float64, device=v.device).index_add(0, sample, terms)


@per_element()
def dropout_by_mask(at: At, x: Tensor, mask: Tensor, p: float) -> Tensor:
    """Returns x / (1 - p) where the bit is 1, else 0; element i has bit i mod 8, the lowest first, of byte i / 8."""
    number = flat(at, x.shape)
    bit = mask[number // 8].to(torch.int64) // 2 ** (number % 8) % 2
    return to_float64(x[at]) * bit / (1 - p)


@per_element()
def adamw(
    at: At,
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    largest: Sequence[Tensor],
    steps: Sequence[Tensor],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    **_: Any,
) -> tuple[Tensor, ...]:
    """Computes m' = b1 m + (1 - b1) g, v' = b2 v + (1 - b2) g^2, and with the means m' / (1 - b1^t) and v' / (1 - b2^t)

    p' = p - lr (weight decay p + m mean / (sqrt(v mean) + eps)) (Loshchilov and Hutter 2019, algorithm 2).
    """
    p, g, m, v = (to_float64(own[0][at]) for own in (parameters, gradients, first, second))
    t = to_float64(steps[0]).to(torch.float64)
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    direction = m / (1 - beta1**t) / ((v / (1 - beta2**t)) ** 0.5 + eps)
    return p - lr * (weight_decay * p + direction), m, v


@per_element()
@takes
def apply_adamw(at: At, call: ApplyAdamW) -> tuple[Tensor, ...]:
    """Returns `adamw` with the powers of the betas of the previous step (aclnnApplyAdamW)."""
    beta1, beta2 = call.beta1, call.beta2
    p, m, v, g = (to_float64(tensor[at]) for tensor in (*call.out, call.gradient))
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    direction = m / (1 - call.beta1_power * beta1) / ((v / (1 - call.beta2_power * beta2)) ** 0.5 + call.epsilon)
    return p - call.lr * (call.weight_decay * p + direction), m, v


@on_lists
@pointwise
def foreach_add(x: Tensor, y: Tensor, *, alpha: float) -> Tensor:
    return x + alpha * y


@on_lists
@pointwise
def foreach_multiply(x: Tensor, factor: float) -> Tensor:
    return x * factor
