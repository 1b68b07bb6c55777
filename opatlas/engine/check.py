"""Is the result right? Results of a replay against its reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from opatlas.engine.expectations import (
    Comparison,
    Largest,
    Picks,
    Rounded,
)
from opatlas.engine.formula import Formula
from opatlas.model.errors import WrongResult

#: How far an element may be off, relative to itself and to the root mean square of the result
#: (which is what cancels in sums), by the result's dtype: two units in the last place for the
#: half types, whose accumulation is in float32; for float32 what thousands of additions leave.
_RELATIVE_TOLERANCE = {
    torch.bfloat16: 2 * 2.0**-7,
    torch.float16: 2 * 2.0**-10,
    torch.float32: 1e-4,
    torch.float64: 1e-9,
}

#: Where the references can be computed: an NPU has no float64 for most of what they do, products of matrices included.
#: Device "meta", on which the tests make NPU calls, computes nothing, and nothing can be copied from it.
_HAVE_FLOAT64 = ("cpu", "cuda", "meta")

#: What stands in for the wider unsigned dtypes where results are compared.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


@dataclass(frozen=True)
class Checked:
    """How many elements of the results were compared, and how many there are."""

    elements: int
    total: int


def check(
    formula: Formula, arguments: Sequence[Any], keywords: dict[str, Any], results: Sequence[torch.Tensor], seed: int
) -> Checked:
    """Compares the results of a kernel with its reference.

    On the device where they are, if it computes in float64; else they are copied to the host.

    Args:
        formula: the reference.
        arguments, keywords: what the kernel was called with, before it ran (clones of what it changes).
        results: what it returned.
        seed: chooses the elements of a large result.

    Raises:
        WrongResult: an element is off by more than its dtype's tolerance; no share of wrong
            elements is allowed.
    """
    total = sum(result.numel() for result in results)
    if not total:
        return Checked(0, 0)
    keywords = {name: _comparable(value) for name, value in keywords.items()}
    comparisons = formula.compare(_comparable(arguments), keywords, _comparable(results), seed)
    for number, comparison in enumerate(comparisons):
        _compare(comparison, f"result {number}" if len(results) > 1 else "the result", formula.name)
    return Checked(min(sum(c.actual.numel() for c in comparisons), total), total)


def is_checked_on_host(device: torch.device) -> bool:
    """Whether the tensors of a row on this device are copied to the host, for the reference is computed there."""
    return device.type not in _HAVE_FLOAT64


def _compare(comparison: Comparison, what: str, reference: str) -> None:
    actual, expected, relative = comparison.actual, comparison.expected, 0.0
    if not comparison.exact and actual.is_floating_point():
        relative = comparison.steps * _RELATIVE_TOLERANCE[actual.dtype]
    rounding = 0.0
    match expected:
        case Picks(values=values):
            actual = expected.picked(actual, what, reference)
        case Largest(values=values, slack=relative):
            actual = expected.picked(actual, what, reference)
        case Rounded(values=values, slack=slack):
            actual, rounding = expected.whole(actual), 0.5 + slack
        case _:
            values = expected
    values = values.expand(actual.shape)
    if rounding:
        tolerance = torch.full((), rounding, device=actual.device)
        wrong = ~((actual - values).abs() <= tolerance)
    elif not relative:
        tolerance = torch.zeros((), device=actual.device)
        wrong = actual != values
    else:
        values, actual = values.to(torch.float64), actual.to(torch.float64)
        # An infinite number allows no other: masked logits are minus infinity.
        tolerance = relative * (values.abs() + _root_mean_square(values)).nan_to_num(posinf=0.0)
        # Written so that NaN is wrong, also where the reference has it: inputs are such that none arises.
        wrong = ~(((actual - values).abs() <= tolerance) | (actual == values))
    if bool(wrong.any()):
        count = int(wrong.sum())
        first = tuple(int(i) for i in wrong.nonzero()[0]) if wrong.dim() else ()
        allowed = float(tolerance[first] if tolerance.dim() else tolerance)
        raise WrongResult(
            f"{what} differs from the reference {reference} in {count} of {wrong.numel()} checked elements: "
            f"got {actual[first].item()}, expected {values[first].item()} within {allowed:.3g}"
        )


def _root_mean_square(values: torch.Tensor) -> float:
    """Of the finite ones."""
    mean = float(values.square().mean())
    if not math.isfinite(mean):
        mean = float(values[values.isfinite()].square().mean().nan_to_num(0.0))
    return math.sqrt(mean)


def _comparable(value: Any) -> Any:
    """Tensors, also in lists, where references can be computed, and of dtypes that torch indexes and compares.

    It does neither on CUDA with the wider unsigned dtypes, which become signed ones. The numbers stay
    the same: rows are replayed on small ones.
    """
    if isinstance(value, (list, tuple)):
        return [_comparable(item) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    tensor = value.cpu() if is_checked_on_host(value.device) else value
    return tensor.view(_SIGNED[tensor.dtype]) if tensor.dtype in _SIGNED else tensor
