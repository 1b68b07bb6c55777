"""Formulas of norms, activations, reductions and scans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi, prod, sqrt
from typing import Any

import torch
from torch import Tensor

from opatlas.run.formula import At, each, per_element, per_row, to_float64
from opatlas.run.result_check import Formula

#: Number of terms of the pieces in which long sums are added, so that no whole tensor is in float64.
_PIECE = 1 << 20


@per_row("x")
def rms_norm(x: Tensor, gamma: Tensor, *, epsilon: float) -> tuple[Tensor, Tensor]:
    """Computes y = x rstd gamma, and rstd = 1 / sqrt(mean(x^2) + epsilon) (Zhang and Sennrich 2019)."""
    return _rms_norm(x, gamma, epsilon)


def _rms_norm(x: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    rstd = 1 / ((x * x).sum(dim=-1, keepdim=True) / x.shape[-1] + epsilon) ** 0.5
    return x * rstd * gamma, rstd


@per_row("dy", "x", "rstd")
def _x_gradient(dy: Tensor, x: Tensor, gamma: Tensor, rstd: Tensor) -> Tensor:
    """Computes dx_j = r g_j dy_j - r^3 x_j / D sum over i of g_i dy_i x_i.

    Here y_i = g_i r x_i, and dr / dx_j = -r^3 x_j / D.
    """
    common = (gamma * dy * x).sum(dim=-1, keepdim=True)
    return rstd * gamma * dy - rstd**3 * x * common / x.shape[-1]


@per_element(terms=lambda dy, *_: dy.shape[:-1].numel())
def _gamma_gradient(at: At, dy: Tensor, x: Tensor, gamma: Tensor, rstd: Tensor) -> Tensor:
    """Computes dg_j = sum over all rows of dy_j x_j r."""
    (j,) = at
    return (to_float64(dy[..., j]) * to_float64(x[..., j]) * to_float64(rstd)).reshape(-1, len(j)).sum(dim=0)


rms_norm_backward = each(_x_gradient, _gamma_gradient)


@per_row("x1", "x2")
def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns `rms_norm` of x = x1 + x2, and x (aclnnAddRmsNorm)."""
    return *_rms_norm(x1 + x2, gamma, epsilon), x1 + x2


@per_row("x1", "x2")
def add_rms_norm_bias(
    x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns `add_rms_norm` with y + beta (vllm-ascend, csrc/add_rms_norm_bias)."""
    y, rstd = _rms_norm(x1 + x2, gamma, epsilon)
    return y + (0 if beta is None else beta), rstd, x1 + x2


@per_row("x", axes=lambda x, sizes, *_: len(sizes))
def layer_norm(
    x: Tensor, sizes: Sequence[int], gamma: Tensor, beta: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns (x - E[x]) rstd gamma + beta, E[x], and rstd = 1 / sqrt(Var[x] + epsilon) (Ba, Kiros, Hinton 2016)."""
    mean = x.sum(dim=-1, keepdim=True) / x.shape[-1]
    rstd = 1 / (((x - mean) ** 2).sum(dim=-1, keepdim=True) / x.shape[-1] + epsilon) ** 0.5
    return (x - mean) * rstd * gamma.flatten() + beta.flatten(), mean, rstd


def _terms(x: Tensor, *rest: Any, **_: Any) -> int:
    *_order, axes, _keepdim = rest
    return prod(x.shape[axis] for axis in axes)


@per_element(terms=_terms)
def vector_norm(at: At, x: Tensor, order: int, axes: Sequence[int], keepdim: bool, *, dtype: torch.dtype) -> Tensor:
    """Returns sqrt(sum of x^2) along `axes`."""
    assert order == 2
    return _sum(at, x, axes, keepdim, lambda piece: to_float64(piece).square()).sqrt()


@per_row("x")
def softmax(x: Tensor, dim: int) -> Tensor:
    """Returns exp(x - max x) / sum of exp(x - max x), along the last axis."""
    assert dim == -1
    return softmax_of(x)


def softmax_of(x: Tensor) -> Tensor:
    powers = (x - x.amax(dim=-1, keepdim=True)).exp()
    return powers / powers.sum(dim=-1, keepdim=True)


@per_row("x")
def swiglu(x: Tensor, dim: int) -> Tensor:
    """Returns a / (1 + exp(-a)) b, where a and b are the halves of the last axis (Shazeer 2020)."""
    assert dim == -1
    return gate_halves(x)


@per_row("x")
def geglu(x: Tensor, dim: int, approximate: int, activate_left: bool) -> tuple[Tensor, Tensor]:
    """Returns g b and g = a (1 + tanh(sqrt(2 / pi) (a + 0.044715 a^3))) / 2, of the halves a and b (Shazeer 2020)."""
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    gelu = a * (1 + (sqrt(2 / pi) * (a + 0.044715 * a**3)).tanh()) / 2
    return gelu * b, gelu


@per_row("x")
def clipped_swiglu(x: Tensor, *, dim: int, alpha: float, limit: float, bias: float, interleaved: bool) -> Tensor:
    """Returns a / (1 + exp(-alpha a)) (b + bias), of a up to the limit and b within it (gpt-oss, OpenAI 2025)."""
    ends = x.new_tensor([-limit, limit])
    a, b = x[..., ::2].minimum(ends[1]), x[..., 1::2].minimum(ends[1]).maximum(ends[0])
    return a / (1 + (-alpha * a).exp()) * (b + bias)


def gate_halves(x: Tensor) -> Tensor:
    """Returns a / (1 + exp(-a)) b, where a and b are the halves of the last axis."""
    half = x.shape[-1] // 2
    gate, up = x[..., :half], x[..., half:]
    return gate / (1 + (-gate).exp()) * up


@per_element(terms=lambda x, *_: x.shape[-1])
def scaled_masked_softmax(at: At, x: Tensor, mask: Tensor, scale: float, fixed_triu_mask: bool = False) -> Tensor:
    """Returns softmax(z) along the last axis; z = -10000 where the mask holds, else scale x."""
    z = to_float64(x[at[:-1]]) * scale
    z = z.where(~mask.expand(x.shape)[at[:-1]], torch.tensor(-10000.0, dtype=z.dtype, device=z.device))
    return softmax_of(z)[torch.arange(len(z), device=x.device), at[-1]]


@per_element(exact=True, terms=_terms)
def reduce_all(at: At, x: Tensor, axes: Sequence[int], keepdim: bool) -> Tensor:
    """Returns whether no coordinate along `axes` is false."""
    return _sum(at, ~x, axes, keepdim) == 0


@per_element(exact=True, terms=_terms)
def reduce_any(at: At, x: Tensor, axes: Sequence[int], keepdim: bool) -> Tensor:
    """Returns whether a coordinate along `axes` is true."""
    return _sum(at, x, axes, keepdim) > 0


@per_element(terms=_terms)
def reduce_sum(at: At, x: Tensor, axes: Sequence[int], keepdim: bool, *, dtype: torch.dtype) -> Tensor:
    """Returns the sum over all coordinates along `axes`."""
    return _sum(at, x, axes, keepdim)


@per_element(terms=_terms)
def reduce_mean(at: At, x: Tensor, axes: Sequence[int], keepdim: bool, *, dtype: torch.dtype) -> Tensor:
    """Returns the sum along `axes`, divided by the number of its terms."""
    return _sum(at, x, axes, keepdim) / _terms(x, axes, keepdim)


def _sum(
    at: At, x: Tensor, axes: Sequence[int], keepdim: bool, term: Callable[[Tensor], Tensor] = lambda piece: piece
) -> Tensor:
    """Returns the sum of the terms along `axes`, which `term` makes of a piece of x."""
    kept = [axis for axis in range(x.dim()) if axis not in axes]
    kept_at = tuple(at[axis] for axis in kept) if keepdim else at
    terms = x.permute([*kept, *axes])[kept_at].reshape(at[0].numel() if at else 1, _terms(x, axes, keepdim))
    width = min(terms.shape[-1], max(1, _PIECE // max(1, len(terms))))
    total = torch.zeros(len(terms), width, dtype=torch.float64, device=x.device)
    for piece in terms.split(max(1, width), dim=-1):
        total[:, : piece.shape[-1]] += term(piece)
    if not width:
        return total.sum()
    while total.shape[-1] > 1:
        half = (total.shape[-1] + 1) // 2
        folded = total[:, :half].clone()
        folded[:, : total.shape[-1] - half] += total[:, half:]
        total = folded
    return total.reshape(at[0].shape if at else ())


@per_row("x")
def cumulative_sum(x: Tensor, dim: int, *, dtype: torch.dtype) -> Tensor:
    """Returns x[0] + ... + x[i]: after step s each number is the sum of the last 2^s (Hillis and Steele 1986)."""
    assert dim == -1
    total = to_float64(x.to(torch.int64) if x.dtype is torch.bool else x.clone())
    step = 1
    while step < total.shape[-1]:
        total[:, step:] = total[:, step:] + total[:, :-step]
        step *= 2
    return total


def _hyper_connection(number: int, steps: int) -> Formula:
    @per_row("x", axes=lambda *_, **__: 2, least=3, steps=steps)
    def hc_pre(
        x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor, n: int, iterations: int, norm_eps: float, eps: float
    ) -> Tensor:
        rms = ((x * x).mean(dim=-1, keepdim=True) + norm_eps) ** 0.5
        factors = torch.cat([scale[i].expand(count) for i, count in enumerate((n, n, n * n))])
        mixes = torch.stack([(x * row).sum(dim=-1) for row in weight], dim=-1) / rms * factors + bias
        gates = 1 / (1 + (-mixes[:, : 2 * n]).exp())
        # The first step is that of a softmax over lines.
        lines = mixes[:, 2 * n :].reshape(-1, n, n).exp()
        for step in range(iterations):
            lines = lines / (lines.sum(dim=-1, keepdim=True) + eps * (step > 0)) + eps * (step == 0)
            lines = lines / (lines.sum(dim=-2, keepdim=True) + eps)
        y = ((gates[:, :n, None] + eps) * x.reshape(-1, n, x.shape[-1] // n)).sum(dim=1)
        return (y, 2 * gates[:, n:], lines)[number]

    return hc_pre


#: Returns y = sum over i of a_i x_i, weights of a layer's result, and a matrix whose lines and columns add up to 1.
#: An NPU multiplies by the weight with 10 bits. Sources: Xie et al. 2025; vllm-ascend, csrc/moe/hc_pre and its test.
hc_pre = each(_hyper_connection(0, 1), _hyper_connection(1, 10), _hyper_connection(2, 10))


@per_row("x", "residual", "post", "comb")
def hc_post(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Computes y[i, d] = p[i] x[d] + sum over j of c[j, i] r[j, d] (vllm-ascend, csrc/moe/hc_post)."""
    n = post.shape[-1]
    streams, weights = residual.reshape(len(x), n, 1, -1), comb.reshape(len(x), n, n, 1)
    return (weights * streams).sum(dim=1) + post.unsqueeze(-1) * x.unsqueeze(1)
