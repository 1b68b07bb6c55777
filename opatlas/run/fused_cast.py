"""A Cast that graph mode fuses into the kernel before it: the kernel of torch, then a cast, and the formula of both.

A capture names this kernel after both (`Mul_1Cast_5`) and gives it the type of the first. Its row has another output
dtype than the first kernel alone would have.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from opatlas.run.implementations.contract import Prepared
from opatlas.run.result_check import RELATIVE_TOLERANCE, Comparison, Formula, Results

#: The dtypes of casts whose result has a tolerance. A cast to integers rounds, and no formula says on which side.
REAL = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def with_cast(kernel: Callable[..., Any], dtype: torch.dtype) -> Callable[..., Any]:
    """Returns a kernel whose only result is cast to `dtype` within the timed call."""

    def cast(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, torch.Tensor) else [cast(item) for item in value]

    def call(*arguments: Any, **keywords: Any) -> Any:
        value = kernel(*arguments, **keywords)
        if isinstance(value, Prepared):
            return replace(value, call=lambda: cast(value.call()))
        return cast(value)

    return call


class CastFormula:
    """The formula of a kernel and of the cast of its result."""

    def __init__(self, formula: Formula, computed: torch.dtype, result: torch.dtype) -> None:
        """`computed` is the dtype of the kernel's result, `result` that after the cast."""
        self._formula = formula
        # The coarser one of the two decides which results are right; a cast to the other one loses nothing.
        rounds = RELATIVE_TOLERANCE[result] > RELATIVE_TOLERANCE.get(computed, 0.0)
        self._compared_in = result if rounds else computed
        self._rounds = rounds

    @property
    def name(self) -> str:
        """The name of the kernel's formula."""
        return self._formula.name

    def compare(
        self, arguments: Sequence[Any], keywords: dict[str, Any], results: Results, seed: int
    ) -> list[Comparison]:
        """As for `Formula`."""
        compared = [None if result is None else result.to(self._compared_in) for result in results]
        found = self._formula.compare(arguments, keywords, compared, seed)
        return [replace(comparison, exact=False) for comparison in found] if self._rounds else found
