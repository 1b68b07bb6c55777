"""Is the result right? Results of a replay against its reference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

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
class Picks:
    """Expected of a result that holds indices, where ties allow several answers.

    Attributes:
        source: the tensor indexed, (rows, n).
        values: what `source` must hold at the indices, (rows, k).
        distinct: whether the indices of a row must all differ (a sort's do).
    """

    source: torch.Tensor
    values: torch.Tensor
    distinct: bool = False

    def picked(self, indices: torch.Tensor, what: str, reference: str) -> torch.Tensor:
        """What stands at a result's indices. Raises WrongResult for indices that cannot be."""
        indices = indices.to(torch.int64)
        _expect_within(indices, 0, self.source.shape[-1], what, reference)
        if self.distinct:
            _expect_distinct(indices, what, reference)
        return self.source.gather(-1, indices)


@dataclass(frozen=True)
class Largest:
    """Expected of a result that holds the indices of a row's largest numbers, in any order, each once.

    -1 stands for none, where a row has fewer numbers than are asked for.

    Attributes:
        source: as in Picks; minus infinity where a row has no number.
        values: in descending order, minus infinity where a row has no more.
        slack: by how much of itself and of the root mean square a number may be off whose index is
            taken for one of `values`: the kernel's numbers are not in float64.
    """

    source: torch.Tensor
    values: torch.Tensor
    slack: float = 1e-2

    def picked(self, indices: torch.Tensor, what: str, reference: str) -> torch.Tensor:
        """What stands at a result's indices, in descending order. Raises WrongResult for indices that cannot be."""
        indices = indices.to(torch.int64)
        _expect_within(indices, -1, self.source.shape[-1], what, reference)
        _expect_distinct(indices, what, reference)
        found = self.source.gather(-1, indices.clamp(min=0))
        if bool(((found == -torch.inf) & (indices >= 0)).any()):
            raise WrongResult(f"{what} holds an index at which the reference {reference} has no number")
        return found.masked_fill(indices < 0, -torch.inf).sort(dim=-1, descending=True).values


@dataclass(frozen=True)
class Rounded:
    """Expected of a quantized result: the numbers before they were rounded to whole ones.

    A whole number is right where it is the nearest one. Where `values` lie midway between two,
    float32 may decide for either.

    Attributes:
        values: within the range of the result's dtype, float64.
        slack: how far a kernel's own arithmetic may move a value.
        packed: the result holds eight numbers of four bits in each int32, the first in the lowest bits.
    """

    values: torch.Tensor
    slack: float = 1e-2
    packed: bool = False

    def whole(self, result: torch.Tensor) -> torch.Tensor:
        """The whole numbers of a result, (..., 8 n) of a packed (..., n)."""
        if not self.packed:
            return result
        shifts = torch.arange(0, 32, 4, device=result.device, dtype=torch.int32)
        return (((result.unsqueeze(-1) >> shifts) & 15 ^ 8) - 8).flatten(-2)


#: What a formula may say of a result's elements.
Expected = torch.Tensor | Picks | Largest | Rounded


@dataclass(frozen=True)
class Comparison:
    """Elements of one result and what they should be, both of the same shape.

    Attributes:
        steps: how many operations a kernel may go through, each on what the one before rounded to the
            result's dtype.
    """

    actual: torch.Tensor
    expected: Expected
    exact: bool
    steps: int = 1


class Formula(Protocol):
    """A reference that can be evaluated where a result is checked."""

    @property
    def name(self) -> str: ...

    def compare(
        self, arguments: Sequence[Any], keywords: dict[str, Any], results: Sequence[torch.Tensor], seed: int
    ) -> list[Comparison]:
        """What `results`, computed from the arguments, should be, at all or at sampled elements."""
        ...


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


def _expect_within(indices: torch.Tensor, least: int, size: int, what: str, reference: str) -> None:
    if bool(((indices < least) | (indices >= size)).any()):
        raise WrongResult(f"{what} holds an index outside 0 ... {size - 1}; the reference {reference} has none")


def _expect_distinct(indices: torch.Tensor, what: str, reference: str) -> None:
    """Among those that are none, which are negative, equal ones are right."""
    ordered = indices.sort(dim=-1).values
    if bool(((ordered.diff(dim=-1) == 0) & (ordered[..., 1:] >= 0)).any()):
        raise WrongResult(f"{what} holds an index twice; the reference {reference} has each once")
