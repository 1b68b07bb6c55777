"""Compares the results of a kernel with a formula."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import torch

from opatlas.row.errors import WrongResult
from opatlas.run.devices.device import kind_named

#: Tolerance of an element by the dtype of the result, relative to the element and to the root mean square of the result
#: (terms of that size cancel in sums): two units in the last place for half types and FP8, which accumulate in float32;
#: for float32 the error of thousands of additions. A complex number has the tolerance of its parts.
RELATIVE_TOLERANCE = {
    torch.bfloat16: 2 * 2.0**-7,
    torch.float16: 2 * 2.0**-10,
    torch.float8_e4m3fn: 2 * 2.0**-3,
    torch.float8_e5m2: 2 * 2.0**-2,
    torch.float32: 1e-4,
    torch.float64: 1e-9,
    torch.complex64: 1e-4,
    torch.complex128: 1e-9,
}

#: Further allowed error of a result, since its dtype holds no smaller numbers. Kernels may round subnormal numbers of
#: float32 to 0, and all hardware computes with those of float16.
SMALLEST = {
    torch.bfloat16: torch.finfo(torch.bfloat16).smallest_normal,
    torch.float16: 2.0**-24,
    torch.float32: torch.finfo(torch.float32).smallest_normal,
    torch.float64: torch.finfo(torch.float64).smallest_normal,
}

#: Signed dtypes in which results of the wider unsigned dtypes are compared.
_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


#: Elements that are compared at once, in float64.
_AT_ONCE = 1 << 24


@dataclass(frozen=True)
class Picks:
    """Expected indices, where ties allow several answers.

    Attributes:
        source: the indexed tensor, (rows, n).
        values: the values of `source` at the indices, (rows, k).
        distinct: whether the indices of a row must all differ, as in the result of a sort.
    """

    source: torch.Tensor
    values: torch.Tensor
    distinct: bool = False

    def select(self, indices: torch.Tensor, name: str, formula: str) -> torch.Tensor:
        """Returns the values at the indices of a result. Raises WrongResult for impossible indices."""
        indices = indices.to(torch.int64)
        _expect_within(indices, 0, self.source.shape[-1], name, formula)
        if self.distinct:
            _expect_distinct(indices, name, formula)
        return self.source.gather(-1, indices)


@dataclass(frozen=True)
class Largest:
    """Expected indices of the largest numbers of a row, in any order, each once.

    -1 means no index, where a row has too few numbers.

    Attributes:
        source: the indexed tensor, (rows, n); minus infinity where a row has no number.
        values: the largest numbers in descending order; minus infinity where a row has no more.
        slack: relative tolerance of a number at an index: the kernel does not compute in float64.
    """

    source: torch.Tensor
    values: torch.Tensor
    slack: float = 1e-2

    def select(self, indices: torch.Tensor, name: str, formula: str) -> torch.Tensor:
        """Returns the values at the indices of a result, descending. Raises WrongResult for impossible indices."""
        indices = indices.to(torch.int64)
        _expect_within(indices, -1, self.source.shape[-1], name, formula)
        _expect_distinct(indices, name, formula)
        found = self.source.gather(-1, indices.clamp(min=0))
        if bool(((found == -torch.inf) & (indices >= 0)).any()):
            raise WrongResult(f"{name} holds an index at which the formula {formula} has no number")
        return found.masked_fill(indices < 0, -torch.inf).sort(dim=-1, descending=True).values


@dataclass(frozen=True)
class Rounded:
    """Expected numbers of a quantized result, before they are rounded.

    The nearest number of the result's dtype is right: a whole number, or one of FP8. Halfway between two numbers both
    are right.

    Attributes:
        values: within the range of the dtype of the result, float64.
        slack: how far the arithmetic of a kernel may move a value, as a share of the distance between two numbers.
        packed: whether the result holds eight numbers of four bits in each int32, the first one in the lowest bits.
    """

    values: torch.Tensor
    slack: float = 1e-2
    packed: bool = False

    def whole(self, result: torch.Tensor) -> torch.Tensor:
        """Returns the whole numbers of a result; a packed result (..., n) has (..., 8 n) numbers."""
        if not self.packed:
            return result
        shifts = torch.arange(0, 32, 4, device=result.device, dtype=torch.int32)
        return (((result.unsqueeze(-1) >> shifts) & 15 ^ 8) - 8).flatten(-2)


#: Expected elements of a result.
Expected = torch.Tensor | Picks | Largest | Rounded


@dataclass(frozen=True)
class Comparison:
    """Elements of one result and their expected values, of the same shape.

    Attributes:
        exact: whether the elements must equal the expected values.
        steps: number of operations of a kernel that round to the dtype of the result, one after the other.
        nan_is_right: whether NaN is right where NaN is expected. No input of a replay leads to NaN, but arguments of
            torch's own tests do.
    """

    actual: torch.Tensor
    expected: Expected
    exact: bool
    steps: float = 1
    nan_is_right: bool = False


#: Results of a kernel in the order of the formula; None for a result that an implementation does not compute. The first
#: result is never None.
Results = Sequence[torch.Tensor | None]
#: Arguments of a kernel by position, and those by name.
Arguments = Sequence[Any]
Keywords = dict[str, Any]


class Formula(Protocol):
    """A formula in float64 that can be evaluated at the elements that are checked."""

    @property
    def name(self) -> str: ...

    def compare(self, arguments: Arguments, keywords: Keywords, results: Results, seed: int) -> list[Comparison]:
        """Returns all elements of `results`, or a sample, with the expected values computed from the arguments."""
        ...


@dataclass(frozen=True)
class Checked:
    """The outcome of a comparison without a wrong element.

    Attributes:
        elements, total: numbers of compared elements, and of all elements of the results.
        error: the largest difference of an element, as a share of its tolerance; None if all comparisons were exact.
    """

    elements: int
    total: int
    error: float | None = None


def check(formula: Formula, arguments: Arguments, keywords: Keywords, results: Results, seed: int) -> Checked:
    """Compares the results of a kernel with its formula.

    The device computes the formula if it has float64; else the tensors are copied to the host.

    Args:
        arguments, keywords: arguments of the call, with their values before the call (clones of changed tensors).
        results: results of the call.
        seed: chooses the elements of a large result.

    Raises:
        WrongResult: an element is off by more than the tolerance of its dtype; no wrong element is allowed.
    """
    total = sum(result.numel() for result in results if result is not None)
    if not total:
        return Checked(0, 0)
    keywords = {name: comparable(value) for name, value in keywords.items()}
    comparisons = formula.compare(comparable(arguments), keywords, comparable(results), seed)
    errors = [
        _compare(comparison, f"result {number}" if len(results) > 1 else "the result", formula.name)
        for number, comparison in enumerate(comparisons)
    ]
    compared = sum(comparison.actual.numel() for comparison in comparisons)
    return Checked(min(compared, total), total, max((error for error in errors if error is not None), default=None))


def is_checked_on_host(device: torch.device) -> bool:
    """Returns whether results of this device are copied to the host and checked there."""
    return not (device.type == "meta" or kind_named(device.type).has_float64)


@dataclass(frozen=True)
class Errors:
    """How far the elements of a result are off.

    Attributes:
        largest: the largest difference as a share of its tolerance; None if the comparison is exact.
        difference: the largest difference.
        wrong: number of wrong elements.
        first: the first wrong element, for a message; "" if all are right.
    """

    largest: float | None
    difference: float
    wrong: int
    first: str = ""


def _compare(comparison: Comparison, name: str, formula: str) -> float | None:
    """Returns the largest error as a share of the tolerance; None for an exact comparison. Raises WrongResult."""
    found = errors_of(comparison, name, formula)
    if found.wrong:
        elements = f"{found.wrong} of {comparison.actual.numel()} checked elements"
        raise WrongResult(f"{name} differs from the formula {formula} in {elements}: {found.first}")
    return found.largest


def errors_of(comparison: Comparison, name: str, formula: str) -> Errors:
    """Compares all elements of a result, some at once. Raises WrongResult for impossible indices."""
    actual, expected, relative, rounding = comparison.actual, comparison.expected, 0.0, 0.0
    if not comparison.exact and actual.is_floating_point():
        relative = comparison.steps * RELATIVE_TOLERANCE.get(actual.dtype, 0.0)
    match expected:
        case Picks(values=values):
            actual = expected.select(actual, name, formula)
        case Largest(values=values, slack=relative):
            actual = expected.select(actual, name, formula)
        case Rounded(values=values, slack=slack):
            actual, rounding = expected.whole(actual), 0.5 + slack
        case _:
            values = expected
    values, actual = values.expand(actual.shape).reshape(-1), actual.reshape(-1)
    starts, is_scaled = range(0, actual.numel(), _AT_ONCE), bool(relative) and not rounding

    @lru_cache(maxsize=1)
    def wanted(start: int) -> torch.Tensor:
        part = values[start : start + _AT_ONCE]
        return within_range(part.to(torch.float64), actual.dtype) if is_scaled else part

    scale = _root_mean_square(map(wanted, starts)) if is_scaled else 0.0
    largest, difference, wrong, first = 0.0, 0.0, 0, ""
    for start in starts:
        own, want = actual[start : start + _AT_ONCE], wanted(start)
        if rounding:
            tolerance = torch.full((), rounding, device=own.device)
            if own.is_floating_point():
                # Below a power of two the numbers lie twice as close as above.
                own, limits = own.to(torch.float64), torch.finfo(own.dtype)
                tolerance = rounding * _spacing(torch.minimum(want.abs(), own.abs()), limits)
        elif relative:
            own = own.to(torch.float64)
            # An infinite value must be met exactly: masked logits are minus infinity.
            tolerance = relative * (want.abs() + scale).nan_to_num(posinf=0.0) + SMALLEST.get(actual.dtype, 0.0)
        else:
            if bool((own == want).all()):
                continue
            tolerance = torch.zeros((), device=own.device)
        off = (own.to(torch.float64) - want.to(torch.float64)).abs()
        share = off / tolerance
        # One transfer from the device. No number is wrong, infinite or NaN in nearly all results.
        worst, far = torch.stack([share.max(), off.max()]).tolist()
        if not (worst <= 1 and math.isfinite(far)):
            right = own == want
            if comparison.nan_is_right:
                right |= own.isnan() & want.isnan()
            # Any other NaN is wrong, even where the formula gives NaN.
            numbers = (each.nan_to_num(nan=torch.inf, posinf=torch.inf) for each in (off, share))
            off, share = (each.masked_fill(right, 0.0) for each in numbers)
            is_wrong = ~right & ~(share <= 1)
            worst, far = float(share.max()), float(off.max())
            if count := int(is_wrong.sum()):
                place = int(is_wrong.nonzero()[0])
                allowed = float(tolerance[place] if tolerance.dim() else tolerance)
                first = first or f"got {own[place].item()}, expected {want[place].item()} within {allowed:.3g}"
                wrong += count
        largest, difference = max(largest, worst), max(difference, far)
    return Errors(largest if relative or rounding else None, difference, wrong, first)


def within_range(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Returns expected values in float64, with those that a result of `dtype` is too small to hold made infinite."""
    if dtype not in SMALLEST:
        return values
    limits = torch.finfo(dtype)
    # Numbers up to half a step above the largest one are rounded to it.
    too_large = values.abs() >= limits.max * (1 + limits.eps / 4)
    return torch.where(too_large, values.sign() * torch.inf, values)


def _spacing(sizes: torch.Tensor, limits: torch.finfo) -> torch.Tensor:
    """Returns the distance to the next larger number of a dtype, for each size of 0 or more."""
    exponent = torch.frexp(sizes.clamp(min=limits.smallest_normal)).exponent - 1
    return torch.ldexp(torch.full_like(sizes, limits.eps), exponent)


def _root_mean_square(parts: Iterable[torch.Tensor]) -> float:
    """Returns the root mean square of the finite values of the parts of a tensor."""
    squares, count = 0.0, 0
    for part in parts:
        total = float(part.square().sum())
        if not math.isfinite(total):
            part = part[part.isfinite()]
            total = float(part.square().sum())
        squares, count = squares + total, count + part.numel()
    return math.sqrt(squares / count) if count else 0.0


def comparable(value: Any) -> Any:
    """Returns tensors, also in lists, on a device that computes formulas, in dtypes that torch indexes and compares.

    On CUDA torch can neither index nor compare the wider unsigned dtypes. These tensors become signed; their values do
    not change, because replays use small numbers.
    """
    if isinstance(value, (list, tuple)):
        return [comparable(item) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    tensor = value.cpu() if is_checked_on_host(value.device) else value
    return tensor.view(_SIGNED[tensor.dtype]) if tensor.dtype in _SIGNED else tensor


def _expect_within(indices: torch.Tensor, least: int, size: int, name: str, formula: str) -> None:
    if bool(((indices < least) | (indices >= size)).any()):
        raise WrongResult(f"{name} holds an index outside 0 ... {size - 1}, the range of the formula {formula}")


def _expect_distinct(indices: torch.Tensor, name: str, formula: str) -> None:
    """Raises WrongResult for equal indices; negative indices mean no index and may be equal."""
    ordered = indices.sort(dim=-1).values
    if bool(((ordered.diff(dim=-1) == 0) & (ordered[..., 1:] >= 0)).any()):
        raise WrongResult(f"{name} holds an index twice; the formula {formula} has each index once")
