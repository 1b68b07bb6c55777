"""Attention in training, forward and backward."""

from __future__ import annotations

import torch
from torch import Tensor

from .attention import attend_with_lse, has_flash_kernel

#: Maximum number of scores at a time without a fused kernel: 256 MiB in float32.
_SCORES = 1 << 26


def flash_attention_score(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    head_num: int,
    input_layout: str,
    *,
    atten_mask: Tensor | None = None,
    scale: float,
    sparse_mode: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the result in the layout of the queries, (S, B, N x D) or another, and float32 statistics (B, N, S, 8).

    The mask tensor is not read: masks are causal. The statistics are a number m and the sum of exp(score - m), eight
    times each. The fused kernels give the log-sum-exp, which is taken for m; the sum is 1 then. The backward kernel
    needs no more.
    """
    width = _width(query, head_num, input_layout)
    q, k, v = (_split_heads(x, input_layout, width) for x in (query, key, value))
    out, lse = attend_with_lse(q, k, v, scale=scale, causal=atten_mask is not None)
    highest = lse[..., None].expand(*lse.shape, 8).contiguous()
    return _join_heads(out, input_layout), highest, torch.ones_like(highest)


def flash_attention_grad(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dy: Tensor,
    head_num: int,
    input_layout: str,
    *,
    atten_mask: Tensor | None = None,
    softmax_max: Tensor,
    softmax_sum: Tensor,
    attention_in: Tensor,
    scale_value: float,
    sparse_mode: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns gradients of queries, keys and values, in their shapes; see `flash_attention_score`."""
    width = _width(query, head_num, input_layout)
    q, k, v, grad, out = (_split_heads(x, input_layout, width) for x in (query, key, value, dy, attention_in))
    lse = softmax_max[..., 0] + softmax_sum[..., 0].log()
    causal = atten_mask is not None
    if has_flash_kernel(q):
        # Lengths of packed sequences are not defined here; the random state is not read without dropout.
        state = torch.empty(0, dtype=torch.uint64, device=q.device)
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_backward(
            grad, q, k, v, out, lse, None, None, q.shape[2], k.shape[2], 0.0, causal, state, state, scale=scale_value
        )
    else:
        heads, kv_heads = q.shape[1], k.shape[1]
        k, v = (x.repeat_interleave(heads // kv_heads, 1) if heads != kv_heads else x for x in (k, v))
        dq, dk, dv = _unfused_grad(grad, q, k, v, out, lse, scale_value, causal)
        if heads != kv_heads:
            dk, dv = (x.unflatten(1, (kv_heads, heads // kv_heads)).sum(2) for x in (dk, dv))
    dq, dk, dv = (_join_heads(x.to(query.dtype), input_layout) for x in (dq, dk, dv))
    return dq, dk, dv


def _unfused_grad(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns gradients of (B, N, S, D) with equal heads, by the fused kernel of the CPU, or some queries at a time."""
    if q.device.type == "cpu":
        # This kernel took 11 s in half precision, and 0.9 s in float32.
        fused: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad.float(), q.float(), k.float(), v.float(), out.float(), lse, 0.0, causal, scale=scale
        )
        return fused
    keys, values = k.float(), v.float()
    dq, dk, dv = (torch.zeros_like(x, dtype=torch.float32) for x in (q, k, v))
    delta = (grad.float() * out.float()).sum(dim=-1, keepdim=True)
    step = max(1, _SCORES // max(1, q.shape[0] * q.shape[1] * k.shape[2]))
    for first in range(0, q.shape[2], step):
        own = slice(first, min(first + step, q.shape[2]))
        seen = slice(0, own.stop if causal else k.shape[2])
        part_q, part_grad = q[:, :, own].float(), grad[:, :, own].float()
        scores = torch.matmul(part_q, keys[:, :, seen].mT).mul_(scale)
        if causal:
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu_(first + 1)
            scores.masked_fill_(later, -torch.inf)
        shares = scores.sub_(lse[:, :, own, None]).exp_()
        dv[:, :, seen] += torch.matmul(shares.mT, part_grad)
        slopes = torch.matmul(part_grad, values[:, :, seen].mT).sub_(delta[:, :, own]).mul_(shares).mul_(scale)
        dq[:, :, own] = torch.matmul(slopes, keys[:, :, seen])
        dk[:, :, seen] += torch.matmul(slopes.mT, part_q)
    return dq, dk, dv


def _width(query: Tensor, head_num: int, layout: str) -> int:
    return query.shape[-1] if "D" in layout else query.shape[-1] // head_num


def _split_heads(x: Tensor, layout: str, width: int) -> Tensor:
    """Returns a view (B, N, S, D)."""
    if layout == "BNSD":
        return x
    x = x if layout == "BSND" else x.unflatten(-1, (-1, width))
    return x.permute(1, 2, 0, 3) if layout == "SBH" else x.transpose(1, 2)


def _join_heads(x: Tensor, layout: str) -> Tensor:
    """Returns (B, N, S, D) in the layout of a call."""
    if layout == "BNSD":
        return x.contiguous()
    x = x.permute(2, 0, 1, 3) if layout == "SBH" else x.transpose(1, 2)
    return x.contiguous() if layout == "BSND" else x.flatten(-2)
