"""Elementwise kernels, comparisons, logic and selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flag_gems
import torch

from opatlas import Prepared, implements

from .common import expect

Operand = Any


add = implements("Add", "AddAiCore")(flag_gems.add)
sub = implements("Sub", "SubAiCore")(flag_gems.sub)
div = implements("RealDiv", "RealDivAiCore")(flag_gems.true_divide)
floor_divide = implements("FloorDiv", "FloorDivAiCore")(flag_gems.floor_divide)
remainder = implements("FloorMod", "FloorModAiCore")(flag_gems.remainder)
logical_and = implements("LogicalAnd", "LogicalAndAiCore")(flag_gems.logical_and)
logical_or = implements("LogicalOr", "LogicalOrAiCore")(flag_gems.logical_or)
mul = implements("Mul", "MulAiCore", "Muls", "MulsAiCore")(flag_gems.mul)


def _by_operand(of_tensors: Callable[..., Any], of_numbers: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that takes the form of a kernel for its second operand: a tensor, or a number."""

    def call(x: torch.Tensor, y: Operand, *more: Operand) -> Any:
        return (of_tensors if isinstance(y, torch.Tensor) else of_numbers)(x, y, *more)

    return call


power = implements("Pows", "PowsAiCore")(_by_operand(flag_gems.pow_tensor_tensor, flag_gems.pow_tensor_scalar))
eq = implements("Equal", "EqualAiCore")(_by_operand(flag_gems.eq, flag_gems.eq_scalar))
ne = implements("NotEqual", "NotEqualAiCore")(_by_operand(flag_gems.ne, flag_gems.ne_scalar))
gt = implements("Greater", "GreaterAiCore")(_by_operand(flag_gems.gt, flag_gems.gt_scalar))
ge = implements("GreaterEqual", "GreaterEqualAiCore")(_by_operand(flag_gems.ge, flag_gems.ge_scalar))
lt = implements("Less", "LessAiCore")(_by_operand(flag_gems.lt, flag_gems.lt_scalar))
clamp = implements("ClipByValueV2", "ClipByValueV2AiCore")(_by_operand(flag_gems.clamp_tensor, flag_gems.clamp))
neg = implements("Neg", "NegAiCore")(flag_gems.neg)
absolute = implements("Abs", "AbsAiCore")(flag_gems.abs)
relu = implements("Relu", "ReluAiCore")(flag_gems.relu)
log = implements("Log", "LogAiCore")(flag_gems.log)
exp = implements("Exp", "ExpAiCore")(flag_gems.exp)
square = implements("Square", "SquareAiCore")(flag_gems.square)
reciprocal = implements("Reciprocal", "ReciprocalAiCore")(flag_gems.reciprocal)
rsqrt = implements("Rsqrt", "RsqrtAiCore")(flag_gems.rsqrt)
sin = implements("Sin", "SinAiCore")(flag_gems.sin)
cos = implements("Cos", "CosAiCore")(flag_gems.cos)
logical_not = implements("LogicalNot", "LogicalNotAiCore")(flag_gems.logical_not)
where = implements("SelectV2", "SelectV2AiCore")(flag_gems.where_self)


@implements("MaskedFill", "MaskedFillAiCore")
def masked_fill_(x: torch.Tensor, mask: torch.Tensor, value: Operand) -> Prepared:
    """A value on the device is read in the set-up: FlagGems waits for it on the host in each call."""
    number = value.item() if isinstance(value, torch.Tensor) else value
    return Prepared(lambda: flag_gems.masked_fill_(x, mask, number), changes=(x,))


@implements("Cast", "CastAiCore")
def to(x: torch.Tensor, dtype: torch.dtype, *, copy: bool) -> Any:
    return flag_gems.to_copy(x, dtype=dtype)


@implements("ReduceSum", "ReduceSumOpAiCore", "ReduceSumD")
def reduce_sum(x: torch.Tensor, axes: Any, keepdim: bool, *, dtype: torch.dtype) -> Any:
    return flag_gems.sum_dim(x, list(axes), keepdim, dtype=dtype)


@implements("ReduceMean", "ReduceMeanAiCore", "ReduceMeanD")
def reduce_mean(x: torch.Tensor, axes: Any, keepdim: bool, *, dtype: torch.dtype) -> Any:
    return flag_gems.mean_dim(x, list(axes), keepdim, dtype=dtype)


@implements("Cumsum")
def cumsum(x: torch.Tensor, dim: int, *, dtype: torch.dtype) -> Any:
    expect(x.dim() > 0, "no axes", "one axis or more")
    return flag_gems.cumsum(x, dim, dtype=dtype)
