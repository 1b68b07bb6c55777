"""Formulas of kernels that the ranks of an expert-parallel group run together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bench.expected.activations import gated
from bench.reference.formula import each, per_element, per_row, to_float64

__all__ = ["dispatch_ffn_combine"]

At = tuple[torch.Tensor, ...]


@per_row("x", "expert_idx", "probs", least=3, steps=2)
def dispatch_ffn_combine(
    x: torch.Tensor,
    weight1: Sequence[torch.Tensor],
    weight2: Sequence[torch.Tensor],
    expert_idx: torch.Tensor,
    scale1: Sequence[torch.Tensor],
    scale2: Sequence[torch.Tensor],
    probs: torch.Tensor,
    **unused: Any,
) -> torch.Tensor:
    """y = sum over a token's experts e of p swiglu(x w1[e]) w2[e].

    With INT8 weights both products take their left side quantized to its largest, and scale; INT64 scales are
    the bits of float32 numbers. In a group the weights are those of all ranks' experts.
    """
    total = torch.zeros_like(x)
    for t, experts in enumerate(expert_idx.tolist()):
        for p, e in zip(probs[t], experts, strict=True):
            up, down = weight1[0][e], weight2[0][e]
            if up.is_floating_point():
                hidden = gated(x[t] @ up.to(torch.float64))
                total[t] += p * (hidden @ down.to(torch.float64))
            else:
                hidden = gated(_quantized(x[t]) @ up.to(torch.float64) * _real(scale1[0][e]))
                total[t] += p * (_quantized(hidden) @ down.to(torch.float64) * _real(scale2[0][e]))
    return total


@per_element(exact=True)
def _tokens_of_experts(
    at: At, *, expert_idx: torch.Tensor, arriving: Sequence[torch.Tensor] | None = None, **_: Any
) -> Any:
    """How many tokens chose expert e; in a group, how many of all ranks' did (`arriving`, in this rank's numbers)."""
    chosen = torch.cat([ids.flatten() for ids in ([expert_idx] if arriving is None else arriving)])
    return torch.stack([(chosen == e).sum() for e in at[-1]])


dispatch_ffn_combine = each(dispatch_ffn_combine, _tokens_of_experts)


def _real(scale: torch.Tensor) -> torch.Tensor:
    """A scale as a number. Source: vllm-ascend, vllm_ascend/quantization/methods/w8a8_dynamic.py."""
    return to_float64(scale.to(torch.int32).view(torch.float32) if scale.dtype is torch.int64 else scale)


def _quantized(x: torch.Tensor) -> torch.Tensor:
    """What an INT8 with a scale of its own keeps of a row."""
    scale = x.abs().max() / 127
    return (x / scale).round() * scale
