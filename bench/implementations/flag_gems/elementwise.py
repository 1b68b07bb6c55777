"""Elementwise kernels, comparisons, logic and selection."""

from __future__ import annotations

from typing import Any

import flag_gems
import torch

from opatlas import Prepared, implements

from .common import expect

Operand = Any


@implements("Add", "AddAiCore")
def add(x: Operand, y: Operand) -> Any:
    return flag_gems.add(x, y)


@implements("Sub", "SubAiCore")
def sub(x: Operand, y: Operand) -> Any:
    return flag_gems.sub(x, y)


@implements("RealDiv", "RealDivAiCore")
def div(x: Operand, y: Operand) -> Any:
    return flag_gems.true_divide(x, y)


@implements("FloorDiv", "FloorDivAiCore")
def floor_divide(x: Operand, y: Operand) -> Any:
    return flag_gems.floor_divide(x, y)


@implements("FloorMod", "FloorModAiCore")
def remainder(x: Operand, y: Operand) -> Any:
    return flag_gems.remainder(x, y)


@implements("LogicalAnd", "LogicalAndAiCore")
def logical_and(x: Operand, y: Operand) -> Any:
    return flag_gems.logical_and(x, y)


@implements("LogicalOr", "LogicalOrAiCore")
def logical_or(x: Operand, y: Operand) -> Any:
    return flag_gems.logical_or(x, y)


@implements("Mul", "MulAiCore", "Muls", "MulsAiCore")
def mul(x: Operand, y: Operand) -> Any:
    return flag_gems.mul(x, y)


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


@implements("Neg", "NegAiCore")
def neg(x: torch.Tensor) -> Any:
    return flag_gems.neg(x)


@implements("Abs", "AbsAiCore")
def absolute(x: torch.Tensor) -> Any:
    return flag_gems.abs(x)


@implements("Relu", "ReluAiCore")
def relu(x: torch.Tensor) -> Any:
    return flag_gems.relu(x)


@implements("Log", "LogAiCore")
def log(x: torch.Tensor) -> Any:
    return flag_gems.log(x)


@implements("Exp", "ExpAiCore")
def exp(x: torch.Tensor) -> Any:
    return flag_gems.exp(x)


@implements("Square", "SquareAiCore")
def square(x: torch.Tensor) -> Any:
    return flag_gems.square(x)


@implements("Reciprocal", "ReciprocalAiCore")
def reciprocal(x: torch.Tensor) -> Any:
    return flag_gems.reciprocal(x)


@implements("Rsqrt", "RsqrtAiCore")
def rsqrt(x: torch.Tensor) -> Any:
    return flag_gems.rsqrt(x)


@implements("Sin", "SinAiCore")
def sin(x: torch.Tensor) -> Any:
    return flag_gems.sin(x)


@implements("Cos", "CosAiCore")
def cos(x: torch.Tensor) -> Any:
    return flag_gems.cos(x)


@implements("LogicalNot", "LogicalNotAiCore")
def logical_not(x: torch.Tensor) -> Any:
    return flag_gems.logical_not(x)


@implements("ClipByValueV2", "ClipByValueV2AiCore")
def clamp(x: torch.Tensor, least: Operand, most: Operand) -> Any:
    if isinstance(least, torch.Tensor):
        return flag_gems.clamp_tensor(x, least, most)
    return flag_gems.clamp(x, least, most)


@implements("SelectV2", "SelectV2AiCore")
def where(condition: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Any:
    return flag_gems.where_self(condition, x, y)


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
