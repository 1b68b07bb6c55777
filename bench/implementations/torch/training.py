"""Kernels of a training step: losses, gradients, dropout, the optimizer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .._calls import ApplyAdamW, takes

embedding_backward = torch.ops.aten.embedding_dense_backward
foreach_add = torch._foreach_add
foreach_multiply = torch._foreach_mul
log_softmax_backward = torch.ops.aten._log_softmax_backward_data
threshold_backward = torch.ops.aten.threshold_backward
_List = list[Tensor]


def swiglu_backward(gradient: Tensor, x: Tensor, dim: int) -> Tensor:
    """Returns the gradient of `swiglu` for its input: (..., D) and (..., 2 D) to (..., 2 D)."""
    gate, up = x.chunk(2, dim)
    result = torch.empty_like(x)
    of_gate, of_up = result.chunk(2, dim)
    torch.ops.aten.silu_backward.grad_input(gradient * up, gate, grad_input=of_gate)
    torch.mul(functional.silu(gate), gradient, out=of_up)
    return result


def nll_loss(x: Tensor, target: Tensor, weight: Tensor, reduction: int, ignore_index: int) -> tuple[Tensor, Tensor]:
    """Calls aten's nll_loss_forward with targets of any integer type."""
    loss, total_weight = torch.ops.aten.nll_loss_forward(x, target.long(), weight, reduction, ignore_index)
    return loss, total_weight


def nll_loss_backward(gradient: Tensor, x: Tensor, target: Tensor, weight: Tensor, *arguments: Any) -> Tensor:
    """Calls aten's nll_loss_backward with targets of any integer type."""
    return torch.ops.aten.nll_loss_backward(gradient, x, target.long(), weight, *arguments)


def dropout_by_mask(x: Tensor, mask: Tensor, p: float) -> Tensor:
    """Returns x / (1 - p) where the bit of the mask (uint8, the lowest bit first) is 1, else 0."""
    bits = mask[:, None].bitwise_right_shift(torch.arange(8, dtype=torch.uint8, device=mask.device)) & 1
    kept = bits.view(-1)[: x.numel()].view(x.shape)
    return (x * kept).mul_(1 / (1 - p))


def adamw(
    parameters: _List, gradients: _List, first: _List, second: _List, largest: _List, steps: _List, **options: Any
) -> tuple[Tensor, ...]:
    """Calls torch's fused AdamW with steps of any dtype, and returns the changed tensors."""
    torch._fused_adamw_(parameters, gradients, first, second, largest, [step.float() for step in steps], **options)
    return *parameters, *first, *second


@takes
def apply_adamw(call: ApplyAdamW) -> tuple[Tensor, ...]:
    """Takes a step of AdamW on `out`, a parameter and its two moments, with the previous powers of the betas."""
    gradient, beta1, beta2 = call.gradient.float(), call.beta1, call.beta2
    wide = parameter, first, second = [tensor.float() for tensor in call.out]
    first.mul_(beta1).add_(gradient, alpha=1 - beta1)
    second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    root = (second / (1 - call.beta2_power * beta2)).sqrt_().add_(call.epsilon)
    rate = -call.lr / (1 - call.beta1_power * beta1)
    parameter.mul_(1 - call.lr * call.weight_decay).addcdiv_(first, root, value=rate)
    for tensor, computed in zip(call.out, wide, strict=True):
        if tensor is not computed:
            tensor.copy_(computed)
    return tuple(call.out)
