"""Elementwise and comparison kernels. Operands are tensors that broadcast; the second may be a number."""

from __future__ import annotations

import torch

__all__ = [
    "absolute",
    "add",
    "cast",
    "cosine",
    "divide",
    "equal",
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
    "relu",
    "select",
    "sine",
    "subtract",
]

absolute = torch.abs
add = torch.add
cast = torch.Tensor.to
cosine = torch.cos
divide = torch.div
equal = torch.eq
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
relu = torch.relu
select = torch.where
sine = torch.sin
subtract = torch.sub
