"""Elementwise formulas."""

from __future__ import annotations

from typing import Any

from bench.formula import pointwise

__all__ = ["add"]


@pointwise
def add(x: Any, y: Any) -> Any:
    return x + y
