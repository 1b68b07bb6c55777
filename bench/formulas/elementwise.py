"""Formulas of elementwise kernels, of comparisons and of kernels that make tensors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from opatlas.run.formula import At, per_element, pointwise


@pointwise
def add(x: Any, y: Any) -> Any:
    return x + y


@pointwise
def subtract(x: Any, y: Any) -> Any:
    return x + -1 * y


@pointwise
def multiply(x: Any, y: Any) -> Any:
    return x * y


@pointwise
def divide(x: Any, y: Any) -> Any:
    return _float64(x) * (1 / _float64(y))


@pointwise
def floor_divide(x: Any, y: Any) -> Any:
    """Returns the largest whole number not above x / y."""
    return _floor_of_quotient(x, y)


@pointwise
def floor_modulo(x: Any, y: Any) -> Any:
    """Returns x - y floor(x / y), with the sign of y."""
    return _float64(x) - _float64(y) * _floor_of_quotient(x, y)


@pointwise
def power(x: Any, y: Any) -> Any:
    """Computes x^y = exp(y ln x), for positive x; whole for integers."""
    value = (_float64(y) * _float64(x).log()).exp()
    return value if x.is_floating_point() else (value + 0.5).floor()


@pointwise
def negate(x: Any) -> Any:
    return 0 - x


@pointwise
def absolute(x: Any) -> Any:
    return x * ((x > 0) * 2 - 1)


@pointwise
def relu(x: Any) -> Any:
    """Returns max(x, 0)."""
    return x * (x > 0)


@pointwise
def logarithm(x: Any) -> Any:
    """Returns ln x = log2(x) ln 2."""
    return _float64(x).log2() * math.log(2)


@pointwise
def exponential(x: Any) -> Any:
    """Computes e^x = 2^(x log2 e)."""
    return (_float64(x) * math.log2(math.e)).exp2()


@pointwise
def square(x: Any) -> Any:
    return x * x


@pointwise
def reciprocal(x: Any) -> Any:
    return 1 / _float64(x)


@pointwise
def reciprocal_root(x: Any) -> Any:
    """Returns 1 / sqrt(x)."""
    return 1 / _float64(x) ** 0.5


@pointwise
def clamp(x: Any, least: Any, largest: Any) -> Any:
    """Returns x, or the bound that x exceeds."""
    return x + (least - x) * (x < least) + (largest - x) * (x > largest)


@pointwise
def sine(x: Any) -> Any:
    """Computes sin x = cos(pi / 2 - x)."""
    return (math.pi / 2 - _float64(x)).cos()


@pointwise
def cosine(x: Any) -> Any:
    """Computes cos x = sin(pi / 2 - x)."""
    return (math.pi / 2 - _float64(x)).sin()


@pointwise
def cast(x: Any, dtype: torch.dtype, *, copy: bool) -> Any:
    """Returns x; its whole part for integers; x != 0 for booleans."""
    if dtype is torch.bool:
        return x != 0
    value = _float64(x)
    return value if dtype.is_floating_point else value.sign() * value.abs().floor()


def _float64(x: Any) -> Tensor:
    return torch.as_tensor(x).to(torch.float64)


def _floor_of_quotient(x: Any, y: Any) -> Tensor:
    return (_float64(x) / _float64(y)).floor()


@pointwise
def equal(x: Any, y: Any) -> Any:
    return ~((x < y) | (x > y))


@pointwise
def not_equal(x: Any, y: Any) -> Any:
    return (x < y) | (x > y)


@pointwise
def less(x: Any, y: Any) -> Any:
    return ~((x > y) | (x == y))


@pointwise
def greater(x: Any, y: Any) -> Any:
    return ~((x < y) | (x == y))


@pointwise
def greater_equal(x: Any, y: Any) -> Any:
    return ~(x < y)


@pointwise
def logical_and(x: Any, y: Any) -> Any:
    return (x != 0) & (y != 0)


@pointwise
def logical_or(x: Any, y: Any) -> Any:
    return (x != 0) | (y != 0)


@pointwise
def logical_not(x: Any) -> Any:
    return x == 0


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
