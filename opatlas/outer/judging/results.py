"""The results of a candidate: whether they are plain, written and right, and the same as those of other calls."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from opatlas.outer.judging.judgement import CandidateRejected, ErrorClass
from opatlas.run.kernel_call import OperatorMode
from opatlas.run.result_check import RELATIVE_TOLERANCE, Comparison, comparable, errors_of, within_range

#: Elements that are compared at once: the comparison needs some bytes for each.
_PART = 1 << 24
#: The types of tensors that hold their values.
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NUMBERS = (int, float, complex, bool)

#: Results of a candidate in order: tensors, and whatever else it returned.
FlatResults = tuple[Any, ...]


def flat_results(returned: Any) -> FlatResults:
    """Returns the values in a return value: lists, tuples, dicts and named tuples are flattened, views computed.

    Nothing of the candidate is called: a class of its own could compute when it is read.

    Raises:
        CandidateRejected: an object is of a class that may compute later, or a tensor has no values in memory.
    """
    kind = type(returned)
    if kind in _PLAIN:
        _expect_values(returned)
        return (returned.resolve_conj().resolve_neg(),)
    if kind is dict or kind is OrderedDict:
        return tuple(result for value in dict.values(returned) for result in flat_results(value))
    if kind is list or _is_tuple(kind):
        values = list.__iter__(returned) if kind is list else tuple.__iter__(returned)
        return tuple(result for value in values for result in flat_results(value))
    if kind not in _NUMBERS and issubclass(kind, (torch.Tensor, list, tuple, Mapping, *_NUMBERS)):
        text = f"a result is a {kind.__qualname__}: return a plain tensor, list, tuple or dict that holds its values"
        raise CandidateRejected(ErrorClass.HACK, "lazy-result", text)
    return (returned,)


def _is_tuple(kind: type) -> bool:
    """Returns whether a type is tuple, a named tuple, or one of torch's, which have names as well."""
    if kind is tuple or kind.__module__ == "torch.return_types":
        return True
    return kind.__bases__ == (tuple,) and isinstance(kind.__dict__.get("_fields"), tuple)


def _expect_values(value: torch.Tensor) -> None:
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        return
    try:
        address = value.untyped_storage().data_ptr()
    except RuntimeError:
        address = 0
    if value._is_zerotensor() or (value.numel() and not address):
        text = "a result has no values of its own in memory: compute it in the call"
        raise CandidateRejected(ErrorClass.HACK, "lazy-result", text)


def same_results(results: FlatResults, known: FlatResults) -> torch.Tensor:
    """Returns whether results equal the results of an earlier call on equal inputs, as a tensor of one bool.

    Two tolerances apart are the same: sums may be computed in another order. Does not wait for the device.
    """
    device = next((each.device for each in known if isinstance(each, torch.Tensor)), torch.device("cpu"))
    same = torch.ones((), dtype=torch.bool, device=device)
    if len(results) != len(known):
        return ~same
    for result, expected in zip(results, known, strict=True):
        if not isinstance(expected, torch.Tensor) or not isinstance(result, torch.Tensor):
            # NaN is the same as NaN.
            if type(result) is not type(expected) or repr(result) != repr(expected):
                return ~same
        elif result.shape != expected.shape or result.dtype != expected.dtype or result.device != expected.device:
            return ~same
        else:
            same = same & _is_close(result, expected)
    return same


def _is_close(result: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    if result.layout is not torch.strided:
        result, expected = result.to_dense(), expected.to_dense()
    result, expected = result.detach().reshape(-1), expected.detach().reshape(-1)
    same = torch.ones((), dtype=torch.bool, device=result.device)
    relative = 2 * RELATIVE_TOLERANCE.get(result.dtype, 0.0)
    for start in range(0, result.numel(), _PART):
        one, other = result[start : start + _PART], expected[start : start + _PART]
        if not (one.is_floating_point() or one.is_complex()):
            same = same & (one == other).all()
            continue
        one, other = one.to(_wide(one.dtype)), other.to(_wide(one.dtype))
        size = other.abs()
        finite = torch.where(size.isfinite(), size, 0)
        limit = relative * (finite + finite.square().mean().sqrt())
        is_near = ((one - other).abs() <= limit) | (one == other) | (one.isnan() & other.isnan())
        same = same & is_near.all()
    return same


def _wide(dtype: torch.dtype) -> torch.dtype:
    if dtype.is_complex:
        return torch.complex128 if dtype is torch.complex128 else torch.complex64
    return torch.float64 if dtype is torch.float64 else torch.float32


def have_equal_bits(one: FlatResults, other: FlatResults) -> bool:
    """Returns whether two results are equal to the last bit. Waits for the device."""
    return len(one) == len(other) and all(
        same_bits(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else repr(a) == repr(b)
        for a, b in zip(one, other, strict=True)
    )


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors have the same shape, dtype and bits. Waits for the device."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.layout is not torch.strided or one.is_quantized:
        return torch.equal(one, other)
    return torch.equal(*(each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (one, other)))


#: Operators that return memory as they find it.
_ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"})
#: Small blocks that are filled in the free memory of a device, and the least size of the large block.
_SMALL_BYTES, _SMALL_BLOCKS, _LEAST_BYTES = 512 << 10, 16, 4 << 20
#: Largest number that torch fills integers with.
_LARGEST = 2**62


class PoisonedAllocations(OperatorMode):
    """Fills each tensor that is allocated without values, while the mode is active."""

    def __init__(self, *, with_nan: bool = True) -> None:
        """`with_nan`: as `poison` does; else with ones."""
        super().__init__()
        self._fill: Callable[[torch.Tensor], object] = poison if with_nan else lambda tensor: tensor.fill_(1)

    def make(self, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        result = operator(*arguments, **keywords)
        if operator.overloadpacket.__name__ in _ALLOCATIONS:
            self._fill(result)
        return result


def poison(tensor: torch.Tensor) -> None:
    """Fills a tensor with NaN; one of integers with large numbers, one of bool with True."""
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.fill_(torch.nan)
    elif tensor.dtype is torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(min(torch.iinfo(tensor.dtype).max, _LARGEST))


def poisoned_elements(results: Iterable[Any]) -> int:
    """Returns the number of elements with the values of `poison`; elements of bool do not count."""
    count = 0
    for result in results:
        if not isinstance(result, torch.Tensor):
            continue
        if result.is_floating_point() or result.is_complex():
            count += int(result.isnan().sum())
        elif result.dtype is not torch.bool:
            count += int((result == min(torch.iinfo(result.dtype).max, _LARGEST)).sum())
    return count


def poison_free_memory(device: torch.device, size: int) -> None:
    """Fills `size` bytes of the memory that torch's allocator hands out next on a device, and frees them again.

    The allocators of devices have a pool of small blocks, and one of large blocks that they divide.
    """
    small = [torch.full((_SMALL_BYTES // 4,), torch.nan, device=device) for _ in range(_SMALL_BLOCKS)]
    large = torch.full((max(size, _LEAST_BYTES) // 4,), torch.nan, device=device)
    del small, large


#: The limit of the second verdict: the largest difference of any element.
LIMIT = 1e-3
#: Elements from which the sub-class of a mismatch is found.
_CLASSIFIED = 1 << 22


@dataclass(frozen=True)
class Compared:
    """The comparison of all results with the reference.

    Attributes:
        error: the largest error of an element as a share of its tolerance; 0.0 if all comparisons were exact.
        difference: the largest difference of an element.
        elements: number of compared elements.
        wrong: number and place of the first wrong result ("result 1: 3 of 64 elements ..."); "" if all are right.
        sub_class: how the first wrong result is wrong.
    """

    error: float
    difference: float
    elements: int
    wrong: str = ""
    sub_class: str = ""

    @property
    def finite_error(self) -> float | None:
        """The largest error; None if it is not finite."""
        return self.error if math.isfinite(self.error) else None

    @property
    def within(self) -> bool:
        """Whether all elements differ by less than 1e-3."""
        return self.difference < LIMIT


def interface_problem(
    results: Sequence[Any], expected: Sequence[Any], device: torch.device, checks_dtypes: bool = True
) -> tuple[str, str]:
    """Returns sub-class and text of the problem with the form of results; ("", "") without one.

    Args:
        results: of the candidate.
        expected: of the reference, in the dtypes of the row.
        device: where the results must be.
        checks_dtypes: whether the dtypes must agree.
    """
    if len(results) != len(expected):
        return "count", f"{len(results)} results, not {len(expected)}"
    for number, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        name = f"result {number}" if len(results) > 1 else "the result"
        if result is None and wanted is not None:
            return "none", f"{name} is None"
        if not isinstance(wanted, torch.Tensor) or not isinstance(result, torch.Tensor):
            if isinstance(wanted, torch.Tensor) or type(result) is not type(wanted):
                return "type", f"{name} is of type {type(result).__name__}, not {type(wanted).__name__}"
            continue
        if result.shape != wanted.shape:
            return "shape", f"{name} has the shape {list(result.shape)}, not {list(wanted.shape)}"
        if checks_dtypes and result.dtype != wanted.dtype:
            return "dtype", f"{name} is {result.dtype}, not {wanted.dtype}"
        if result.device.type != device.type:
            return "device", f"{name} is on {result.device}, not on {device}"
    return "", ""


def is_narrower(one: torch.dtype, other: torch.dtype) -> bool:
    """Returns whether a dtype holds fewer numbers than another one."""
    if one.is_floating_point and other.is_floating_point:
        return torch.finfo(one).eps > torch.finfo(other).eps or torch.finfo(one).max < torch.finfo(other).max
    return (
        one.is_complex < other.is_complex
        or one.is_floating_point < (other.is_floating_point and not one.is_complex)
        or (one.is_floating_point == other.is_floating_point and one.itemsize < other.itemsize)
    )


def comparison_of(result: torch.Tensor, expected: torch.Tensor, steps: float = 1.0) -> Comparison:
    """Returns a comparison of all elements, in which NaN is right where it is expected.

    Args:
        steps: the number of tolerances that an element may be off.
    """
    actual, wanted = (comparable(each.detach()) for each in (result, expected.to(result.device)))
    if result.is_complex():
        actual, wanted = (torch.view_as_real(each.resolve_conj()) for each in (actual, wanted))
    return Comparison(actual, wanted, exact=not actual.is_floating_point(), steps=steps, nan_is_right=True)


def compare_results(results: Sequence[Any], expected: Sequence[Any], limit: float = 1.0) -> Compared:
    """Compares results of one set of inputs; all elements are compared.

    Args:
        results: of the candidate.
        expected: of the reference in float64, or in the dtypes of the row.
        limit: the number of tolerances that an element may be off.
    """
    worst, difference, elements = 0.0, 0.0, 0
    for number, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        name = f"result {number}" if len(results) > 1 else "the result"
        if not isinstance(wanted, torch.Tensor):
            # A number that is not a tensor has the tolerance of float32.
            result, wanted = (torch.as_tensor(each, dtype=torch.float32) for each in (result, wanted))
        comparison = comparison_of(result, wanted, limit)
        found = errors_of(comparison, name, "of the reference")
        worst = max(worst, math.inf if found.wrong and found.largest is None else found.largest or 0.0)
        difference, elements = max(difference, found.difference), elements + result.numel()
        if found.wrong:
            text = f"{name} is wrong in {found.wrong:,} of {comparison.actual.numel():,} elements: {found.first}"
            return Compared(worst, difference, elements, text, _sub_class(comparison))
    return Compared(worst, difference, elements)


def _sub_class(comparison: Comparison) -> str:
    assert isinstance(comparison.expected, torch.Tensor)
    step = -(-comparison.actual.numel() // _CLASSIFIED)
    dtype = comparison.actual.dtype
    result, expected = (each.reshape(-1)[::step].to(torch.float64) for each in (comparison.actual, comparison.expected))
    tolerance = comparison.steps * RELATIVE_TOLERANCE.get(dtype, 0.0)
    return mismatch_sub_class(result.cpu().numpy(), within_range(expected, dtype).cpu().numpy(), tolerance)


#: A mismatch below this many tolerances is one of precision.
_PRECISION = 16.0


def mismatch_sub_class(result: NDArray[np.float64], expected: NDArray[np.float64], tolerance: float) -> str:
    """Returns the sub-class of a wrong result.

    The first that fits of: nan, inf, all-zero, constant, permuted, scaled, precision (below 16 tolerances), other.

    Args:
        result, expected: all elements of one result, or the elements at the same positions, in float64.
        tolerance: the allowed error as a share of |expected| + rms(expected).
    """
    result, expected = result.ravel(), expected.ravel()
    if np.any(np.isnan(result) & ~np.isnan(expected)):
        return "nan"
    if np.any(np.isinf(result) & (result != expected)):
        return "inf"
    finite = np.isfinite(result) & np.isfinite(expected)
    if not finite.any():
        return "other"
    result, expected = result[finite], expected[finite]
    scale = np.abs(expected) + np.sqrt(np.mean(expected**2))
    allowed = tolerance * np.maximum(scale, np.finfo(np.float64).tiny)
    if not result.any():
        return "all-zero"
    if result.size > 1 and np.ptp(result) == 0 < np.ptp(expected):
        return "constant"
    far = np.abs(result - expected) >= _PRECISION * allowed
    order = np.argsort(expected)
    # One of many values that is slightly off is near its place in the order, too.
    if far.sum() > 1 and np.all(np.abs(np.sort(result) - expected[order]) <= allowed[order]):
        return "permuted"
    power = float(expected @ expected)
    factor = float(result @ expected) / power if power else 0.0
    if expected.size > 1 and factor and np.all(np.abs(result - factor * expected) <= abs(factor) * allowed):
        return "scaled"
    return "other" if far.any() else "precision"
