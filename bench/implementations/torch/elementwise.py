"""Elementwise and comparison kernels. Operands are tensors that broadcast; the second may be a number."""

from __future__ import annotations

import torch

__all__ = [
    "absolute",
    "add",
    "cast",
    "clamp",
    "cosine",
    "divide",
    "equal",
    "exponential",
    "floor_divide",
    "floor_modulo",
    "greater",
    "greater_equal",
    "less",
    "logarithm",
    "logical_and",
    "logical_not",
    "logical_or",
    "multiply",
    "negate",
    "not_equal",
    "power",
    "reciprocal",
    "reciprocal_root",
    "relu",
    "select",
    "sine",
    "square",
    "subtract",
]

absolute = torch.abs
add = torch.add
cast = torch.Tensor.to
clamp = torch.clamp
cosine = torch.cos
divide = torch.div
equal = torch.eq
exponential = torch.exp
floor_divide = torch.floor_divide
floor_modulo = torch.remainder
greater = torch.gt
greater_equal = torch.ge
less = torch.lt
logarithm = torch.log
logical_and = torch.logical_and
logical_not = torch.logical_not
logical_or = torch.logical_or
multiply = torch.mul
negate = torch.neg
not_equal = torch.ne
power = torch.pow
reciprocal = torch.reciprocal
reciprocal_root = torch.rsqrt
relu = torch.relu
select = torch.where
sine = torch.sin
square = torch.square
subtract = torch.sub
