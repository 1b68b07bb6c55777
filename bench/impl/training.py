"""Kernels of a training step: losses, gradients, dropout, the optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

__all__ = [
    "adamw",
    "dropout_by_mask",
    "embedding_backward",
    "foreach_add",
    "foreach_multiply",
    "log_softmax",
    "log_softmax_backward",
    "nll_loss",
    "nll_loss_backward",
    "swiglu_backward",
    "threshold_backward",
]

embedding_backward = torch.ops.aten.embedding_dense_backward
foreach_add = torch._foreach_add
foreach_multiply = torch._foreach_mul
log_softmax = torch.log_softmax
log_softmax_backward = torch.ops.aten._log_softmax_backward_data
threshold_backward = torch.ops.aten.threshold_backward


def swiglu_backward(gradient: torch.Tensor, x: torch.Tensor, dim: int) -> torch.Tensor:
    """The gradient of `swiglu` for its input: (..., D) and (..., 2 D) to (..., 2 D)."""
    gate, up = x.chunk(2, dim)
    result = torch.empty_like(x)
    of_gate, of_up = result.chunk(2, dim)
    torch.ops.aten.silu_backward.grad_input(gradient * up, gate, grad_input=of_gate)
    torch.mul(functional.silu(gate), gradient, out=of_up)
    return result


def nll_loss(
    x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor, reduction: int, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """As aten's nll_loss_forward, with targets of any integer type."""
    loss, total_weight = torch.ops.aten.nll_loss_forward(x, target.long(), weight, reduction, ignore_index)
    return loss, total_weight


def nll_loss_backward(
    gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor, *arguments: Any
) -> torch.Tensor:
    """As aten's, with targets of any integer type."""
    result: torch.Tensor = torch.ops.aten.nll_loss_backward(gradient, x, target.long(), weight, *arguments)
    return result


def dropout_by_mask(x: torch.Tensor, mask: torch.Tensor, p: float) -> torch.Tensor:
    """x / (1 - p) where its bit in the mask (uint8, the lowest bit first) is 1, else 0."""
    bits = mask[:, None].bitwise_right_shift(torch.arange(8, dtype=torch.uint8, device=mask.device)) & 1
    kept = bits.view(-1)[: x.numel()].view(x.shape)
    return (x * kept).mul_(1 / (1 - p))


def adamw(
    parameters: list[torch.Tensor],
    gradients: list[torch.Tensor],
    first_moments: list[torch.Tensor],
    second_moments: list[torch.Tensor],
    largest_second_moments: list[torch.Tensor],
    steps: list[torch.Tensor],
    **options: Any,
) -> tuple[torch.Tensor, ...]:
    """As torch's fused AdamW, with the steps in any type; what it changed."""
    steps = [step.float() for step in steps]
    torch._fused_adamw_(parameters, gradients, first_moments, second_moments, largest_second_moments, steps, **options)
    return *parameters, *first_moments, *second_moments
