"""Elementwise kernels, comparisons, logic and selection."""

from __future__ import annotations

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


@implements("Pows", "PowsAiCore")
def power(x: torch.Tensor, exponent: Operand) -> Any:
    if isinstance(exponent, torch.Tensor):
        return flag_gems.pow_tensor_tensor(x, exponent)
    return flag_gems.pow_tensor_scalar(x, exponent)


@implements("Equal", "EqualAiCore")
def eq(x: torch.Tensor, y: Operand) -> Any:
    return flag_gems.eq(x, y) if isinstance(y, torch.Tensor) else flag_gems.eq_scalar(x, y)


@implements("NotEqual", "NotEqualAiCore")
def ne(x: torch.Tensor, y: Operand) -> Any:
    return flag_gems.ne(x, y) if isinstance(y, torch.Tensor) else flag_gems.ne_scalar(x, y)


@implements("Greater", "GreaterAiCore")
def gt(x: torch.Tensor, y: Operand) -> Any:
    return flag_gems.gt(x, y) if isinstance(y, torch.Tensor) else flag_gems.gt_scalar(x, y)


@implements("GreaterEqual", "GreaterEqualAiCore")
def ge(x: torch.Tensor, y: Operand) -> Any:
    return flag_gems.ge(x, y) if isinstance(y, torch.Tensor) else flag_gems.ge_scalar(x, y)


@implements("Less", "LessAiCore")
def lt(x: torch.Tensor, y: Operand) -> Any:
    return flag_gems.lt(x, y) if isinstance(y, torch.Tensor) else flag_gems.lt_scalar(x, y)


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


@implements("ClipByValueV2", "ClipByValueV2AiCore")
def clamp(x: torch.Tensor, least: Operand, most: Operand) -> Any:
    if isinstance(least, torch.Tensor):
        return flag_gems.clamp_tensor(x, least, most)
    return flag_gems.clamp(x, least, most)


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
