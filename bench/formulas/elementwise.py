"""Formulas of elementwise kernels, of comparisons and of kernels that make tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from opatlas.run.formula import At, per_element, pointwise
from opatlas.run.result_check import Formula


def _pointwise(name: str, function: Callable[..., Any]) -> Formula:
    function.__name__ = name
    return pointwise(function)


def _real(x: Any) -> Tensor:
    return torch.as_tensor(x).to(torch.float64)


def _floor_of_quotient(x: Any, y: Any) -> Tensor:
    """Returns the largest whole number not above x / y."""
    return (_real(x) / _real(y)).floor()


add = _pointwise("add", lambda x, y: x + y)
subtract = _pointwise("subtract", lambda x, y: x + -1 * y)
multiply = _pointwise("multiply", lambda x, y: x * y)
muls_add = _pointwise("muls_add", lambda x, y, scale: _real(x) * scale + _real(y))
divide = _pointwise("divide", lambda x, y: _real(x) * (1 / _real(y)))
floor_divide = _pointwise("floor_divide", lambda x, y: _floor_of_quotient(x, y))
#: x - y floor(x / y), with the sign of y.
floor_modulo = _pointwise("floor_modulo", lambda x, y: _real(x) - _real(y) * _floor_of_quotient(x, y))
negate = _pointwise("negate", lambda x: 0 - x)
absolute = _pointwise("absolute", lambda x: x * ((x > 0) * 2 - 1))
relu = _pointwise("relu", lambda x: x * (x > 0))
#: ln x = log2(x) ln 2, e^x = 2^(x log2 e), sin x = cos(pi / 2 - x), cos x = sin(pi / 2 - x).
logarithm = _pointwise("logarithm", lambda x: _real(x).log2() * math.log(2))
exponential = _pointwise("exponential", lambda x: (_real(x) * math.log2(math.e)).exp2())
sine = _pointwise("sine", lambda x: (math.pi / 2 - _real(x)).cos())
cosine = _pointwise("cosine", lambda x: (math.pi / 2 - _real(x)).sin())
square = _pointwise("square", lambda x: x * x)
reciprocal = _pointwise("reciprocal", lambda x: 1 / _real(x))
square_root = _pointwise("square_root", lambda x: _real(x) ** 0.5)
reciprocal_root = _pointwise("reciprocal_root", lambda x: 1 / _real(x) ** 0.5)
#: x, or the bound that x exceeds.
clamp = _pointwise("clamp", lambda x, low, high: x + (low - x) * (x < low) + (high - x) * (x > high))
#: Hendrycks and Gimpel 2016 (aclnnFastGelu); Elfwing et al. 2018 (aclnnSilu, which is Swish with a scale of 1).
fast_gelu = _pointwise("fast_gelu", lambda x: x / (1 + (-1.702 * x).exp()))
#: Hendrycks and Gimpel 2016: x times the share of a normal distribution below x; sigmoid(2 z) is (1 + tanh z) / 2.
gelu = _pointwise("gelu", lambda x, *, approximate: x * (1 + (_real(x) / 2**0.5).erf()) / 2)
gelu_by_tanh = _pointwise(
    "gelu_by_tanh",
    lambda x, *, approximate: x / (1 + (-2 * (2 / math.pi) ** 0.5 * (_real(x) + 0.044715 * _real(x) ** 3)).exp()),
)
sigmoid = _pointwise("sigmoid", lambda x: 1 / (1 + (-_real(x)).exp()))
hyperbolic_tangent = _pointwise("hyperbolic_tangent", lambda x: 2 / (1 + (-2 * _real(x)).exp()) - 1)
larger = _pointwise("larger", lambda x, y: x + (y - x) * (y > x))
smaller = _pointwise("smaller", lambda x, y: x + (y - x) * (y < x))
silu = _pointwise("silu", lambda x: x / (1 + (-x).exp()))
equal = _pointwise("equal", lambda x, y: ~((x < y) | (x > y)))
not_equal = _pointwise("not_equal", lambda x, y: (x < y) | (x > y))
less = _pointwise("less", lambda x, y: ~((x > y) | (x == y)))
greater = _pointwise("greater", lambda x, y: ~((x < y) | (x == y)))
less_equal = _pointwise("less_equal", lambda x, y: ~(x > y))
greater_equal = _pointwise("greater_equal", lambda x, y: ~(x < y))
logical_and = _pointwise("logical_and", lambda x, y: (x != 0) & (y != 0))
logical_or = _pointwise("logical_or", lambda x, y: (x != 0) | (y != 0))
logical_not = _pointwise("logical_not", lambda x: x == 0)


@pointwise
def power(x: Any, y: Any) -> Any:
    """Computes x^y = exp(y ln x), for positive x; whole for integers."""
    value = (_real(y) * _real(x).log()).exp()
    return value if x.is_floating_point() else (value + 0.5).floor()


@pointwise
def cast(x: Any, dtype: torch.dtype, *, copy: bool) -> Any:
    """Returns x; its whole part for integers; x != 0 for booleans."""
    if dtype is torch.bool:
        return x != 0
    value = _real(x)
    return value if dtype.is_floating_point else value.sign() * value.abs().floor()


@pointwise
def select(condition: Any, x: Any, y: Any) -> Any:
    """Returns x where the condition holds, y elsewhere."""
    chosen = condition.to(torch.float64)
    return chosen * x + (1 - chosen) * y


@per_element(exact=True)
def zeros_like(at: At, x: Tensor) -> Tensor:
    return x.new_tensor(0)


@per_element(exact=True)
def ones_like(at: At, x: Tensor) -> Tensor:
    return x.new_tensor(1)


@per_element(exact=True)
def fill(at: At, destination: Tensor, value: float) -> Tensor:
    return destination.new_tensor(value)


@per_element()
def arange(at: At, start: float, end: float, step: float, *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns start + i step."""
    (i,) = at
    return start + i.to(torch.float64) * step
