"""Norms and activations."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

#: On a CPU the norm of more numbers is the norm of the norms of pieces of this size.
_PIECE = 1 << 16


def rms_norm(x: Tensor, gamma: Tensor, *, epsilon: float) -> tuple[Tensor, Tensor]:
    """Maps (..., D) and (D,) to y of x's shape and the reciprocal root mean square, float32 (..., 1)."""
    if x.is_cuda and gamma.dtype == x.dtype and hasattr(torch.ops.aten, "_fused_rms_norm"):
        # One kernel for both results (torch 2.8); functional.rms_norm calls it and drops rstd.
        return torch.ops.aten._fused_rms_norm(x, gamma.shape, gamma, epsilon)
    wide = x.float()
    rstd = _reciprocal_rms(wide, epsilon)
    return (wide * rstd).mul_(gamma).to(x.dtype), rstd


def muls_add(x: Tensor, y: Tensor, scale: float) -> Tensor:
    """Returns x scale + y."""
    return torch.add(y, x, alpha=scale)


def rms_norm_backward(dy: Tensor, x: Tensor, gamma: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
    """Returns gradients of x (..., D) and, in float32, of gamma (D,), from the gradient of y and from rstd (..., 1)."""
    normalized, grad = x * rstd, dy.float()
    towards_gamma = (grad * normalized).reshape(-1, x.shape[-1]).sum(dim=0)
    scaled = grad * gamma
    along = torch.linalg.vecdot(scaled, normalized).unsqueeze(-1).div_(x.shape[-1])
    return scaled.addcmul_(normalized, along, value=-1).mul_(rstd).to(x.dtype), towards_gamma


def add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor]:
    """Returns `rms_norm` of x1 + x2: y, rstd, and the sum, for the next residual connection."""
    return add_rms_norm_bias(x1, x2, gamma, None, epsilon)


def inplace_add_rms_norm(x1: Tensor, x2: Tensor, gamma: Tensor, epsilon: float) -> Tensor:
    """Returns rstd; writes y of `add_rms_norm` over x1, and the sum over x2."""
    y, rstd, total = add_rms_norm_bias(x1, x2, gamma, None, epsilon)
    x1.copy_(y)
    x2.copy_(total)
    return rstd


def add_rms_norm_bias(
    x1: Tensor, x2: Tensor, gamma: Tensor, beta: Tensor | None, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns `add_rms_norm` with y + beta (D,)."""
    # Added in float32 like the kernel: rounded terms would show in rstd.
    total = x1.float().add_(x2) if x1.dtype is not torch.float32 else x1 + x2
    rstd = _reciprocal_rms(total, epsilon)
    y = (total * rstd).mul_(gamma)
    return (y if beta is None else y.add_(beta)).to(x1.dtype), rstd, total.to(x1.dtype)


def layer_norm(
    x: Tensor, sizes: Sequence[int], gamma: Tensor, beta: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Maps (..., *sizes) to y of x's shape and dtype, mean and reciprocal deviation, float32 (..., 1 for each size)."""
    if x.is_cuda:
        # One kernel: float32 statistics, inputs of one dtype.
        y, mean, rstd = torch.native_layer_norm(x.to(gamma.dtype), sizes, gamma, beta, epsilon)
        return y.to(x.dtype), mean, rstd
    # On a CPU the statistics have the dtype of gamma and beta; x may have another dtype.
    y, mean, rstd = torch.native_layer_norm(x, sizes, gamma.float(), beta.float(), epsilon)
    return y, mean, rstd


def vector_norm(x: Tensor, order: int, axes: Sequence[int], keepdim: bool, *, dtype: torch.dtype) -> Tensor:
    """Returns the norm along `axes`, in `dtype`."""
    norm: Tensor
    if x.device.type != "cpu" or len(axes) != x.dim() or x.numel() <= _PIECE:
        norm = torch.linalg.vector_norm(x, order, axes, keepdim, dtype=dtype)
        return norm
    # On a CPU torch adds squares one after the other, also in float32: the norm of 2e8 numbers is 2 % off.
    flat, tail = x.flatten(), x.numel() % _PIECE
    pieces = [flat[: len(flat) - tail].view(-1, _PIECE), flat[len(flat) - tail :].unsqueeze(0)]
    norm = torch.linalg.vector_norm(
        torch.cat([torch.linalg.vector_norm(piece, order, -1, dtype=dtype) for piece in pieces]), order
    )
    return norm.view([1] * x.dim()) if keepdim else norm


def _reciprocal_rms(wide: Tensor, epsilon: float) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    return norm.square_().div_(wide.shape[-1]).add_(epsilon).rsqrt_()


#: CANN's value of a masked element.
_MASKED = -10000.0


def fast_gelu(x: Tensor) -> Tensor:
    """Returns x sigmoid(1.702 x)."""
    wide = x.float()
    return torch.sigmoid(wide * 1.702).mul_(wide).to(x.dtype)


def scaled_masked_softmax(x: Tensor, mask: Tensor, scale: float, fixed_triu_mask: bool = False) -> Tensor:
    """Returns softmax(scale x) along the last axis, without the elements where the mask holds."""
    return torch.softmax((x * scale).masked_fill_(mask, _MASKED), -1)


def geglu(x: Tensor, dim: int, approximate: int, activate_left: bool) -> tuple[Tensor, Tensor]:
    """Maps (..., 2 D) to GELU by tanh of the first half along `dim`, times the second, and to that GELU."""
    gate, up = x.chunk(2, dim)
    gelu = functional.gelu(gate, approximate="tanh")
    return gelu * up, gelu


def clipped_swiglu(x: Tensor, *, dim: int, alpha: float, limit: float, bias: float, interleaved: bool = True) -> Tensor:
    """Maps (..., 2 D) to (..., D): x sigmoid(alpha x) of the clipped even features, times the odd ones plus a bias."""
    gate, up = x[..., ::2].float().clamp(max=limit), x[..., 1::2].float().clamp(-limit, limit)
    return (torch.sigmoid(gate * alpha).mul_(gate) * up.add_(bias)).to(x.dtype)


def swiglu(x: Tensor, dim: int) -> Tensor:
    """Maps (..., 2 D) to (..., D): SiLU of the first half along `dim`, times the second."""
    gate, up = x.chunk(2, dim)
    return functional.silu(gate).mul_(up)


def hc_pre(
    x: Tensor, weight: Tensor, scale: Tensor, bias: Tensor, n: int, iterations: int, norm_eps: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the input (..., D) of a layer from streams (..., n, D), and the weights of `hc_post` in float32."""
    wide = x.float()
    mixes = functional.linear(wide.flatten(-2), weight) * _reciprocal_rms(wide.flatten(-2), norm_eps)
    own = zip(mixes.split([n, n, n * n], -1), bias.split([n, n, n * n]), scale, strict=True)
    pre, post, comb = (torch.addcmul(base, mix, factor) for mix, base, factor in own)
    comb = comb.unflatten(-1, (n, n)).softmax(-1).add_(eps)
    for step in range(iterations):
        comb = comb / comb.sum(-1, keepdim=True).add_(eps) if step else comb
        comb = comb / comb.sum(-2, keepdim=True).add_(eps)
    y = torch.linalg.vecdot(wide, (pre.sigmoid() + eps).unsqueeze(-1), dim=-2)
    return y.to(x.dtype), 2 * post.sigmoid(), comb


def hc_post(x: Tensor, residual: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Returns streams (..., n, D): x (..., D) post (..., n) + comb (..., n, n), transposed, times residual."""
    mixed = torch.matmul(comb.mT, residual.to(comb.dtype))
    return mixed.addcmul_(post.unsqueeze(-1), x.unsqueeze(-2).to(post.dtype)).to(x.dtype)
