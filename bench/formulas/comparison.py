"""Formulas of comparisons, logic and selection."""

from __future__ import annotations

from typing import Any

import torch

from opatlas.run.formula import pointwise


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
