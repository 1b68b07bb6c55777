"""The results of a candidate: whether they are plain, written and right, and the same as those of other calls."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from opatlas.outer.judging.judgement import CandidateRejected, ErrorClass
from opatlas.outer.judging.memory import Leaf, TensorForm, leaf_of
from opatlas.run.result_check import RELATIVE_TOLERANCE, Comparison, comparable, errors_of, within_range

_NUMBERS = (int, float, complex, bool)

#: Results of a candidate in order: tensors, and whatever else it returned.
FlatResults = tuple[Any, ...]


def flat_results(returned: Any) -> FlatResults:
    """Returns the values in a return value: lists, tuples, dicts and named tuples are flattened, views computed.

    Nothing of the candidate is called: a class of its own could compute when it is read.

    Raises:
        CandidateRejected: an object is of a class that may compute later.
    """
    kind = type(returned)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
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


def same_results(results: FlatResults, known: FlatResults) -> bool:
    """Returns whether results equal those of another call on equal inputs; sums may be computed in another order."""
    forms = (tuple(map(leaf_of, each)) for each in (results, known))
    is_alike = interface_problem(*forms) == ("", "")
    return is_alike and (have_equal_bits(results, known) or not compare_results(results, known, 2.0).wrong)


def have_equal_bits(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Returns whether two results are equal to the last bit. Waits for the device."""
    return len(one) == len(other) and all(
        same_bits(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else repr(a) == repr(b)
        for a, b in zip(one, other, strict=True)
    )


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors have the same shape, dtype and bits. Waits for the device."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(*(each.detach().contiguous().reshape(-1).view(torch.uint8) for each in (one, other)))


#: Elements from which the sub-class of a mismatch is found.
_CLASSIFIED = 1 << 22


@dataclass(frozen=True)
class Compared:
    """The comparison of all results with the reference.

    Attributes:
        error: the largest error of an element as a share of its tolerance; 0.0 if all comparisons were exact.
        difference: the largest difference of an element.
        wrong: number and place of the first wrong result ("result 1: 3 of 64 elements ..."); "" if all are right.
        sub_class: how the first wrong result is wrong.
    """

    error: float
    difference: float
    wrong: str = ""
    sub_class: str = ""


def interface_problem(
    results: Sequence[Leaf], expected: Sequence[Leaf], *, checks_dtypes: bool = True
) -> tuple[str, str]:
    """Returns sub-class and text of the problem with the form of results; ("", "") without one.

    Args:
        results: of the candidate.
        expected: of the reference, in the dtypes of the row.
        checks_dtypes: whether the dtypes must agree.
    """
    if len(results) != len(expected):
        return "count", f"{len(results)} results, not {len(expected)}"
    for number, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        name = f"result {number}" if len(results) > 1 else "the result"
        if result.kind != wanted.kind or not result.has_value:
            is_none = result.kind == "NoneType"
            what = "None" if is_none else f"of type {result.kind}, not {wanted.kind}"
            return ("none" if is_none else "type"), f"{name} is {what}"
        if not isinstance(result, TensorForm) or not isinstance(wanted, TensorForm):
            continue
        if result.shape != wanted.shape:
            return "shape", f"{name} has the shape {list(result.shape)}, not {list(wanted.shape)}"
        if checks_dtypes and result.dtype != wanted.dtype:
            return "dtype", f"{name} is {result.dtype}, not {wanted.dtype}"
        if result.device != wanted.device:
            return "device", f"{name} is on {result.device}, not on {wanted.device}"
    return "", ""


def is_narrower(one: torch.dtype, other: torch.dtype) -> bool:
    """Returns whether a dtype holds fewer numbers than another one."""
    try:
        return torch.promote_types(one, other) is not one
    except RuntimeError:
        # FP8 and the wider unsigned dtypes are not promoted.
        return one.itemsize < other.itemsize


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
    worst, difference = 0.0, 0.0
    for number, (result, wanted) in enumerate(zip(results, expected, strict=True)):
        name = f"result {number}" if len(results) > 1 else "the result"
        if not isinstance(wanted, torch.Tensor):
            if repr(result) == repr(wanted):
                continue
            # A number that is not a tensor has the tolerance of float32.
            result, wanted = (torch.as_tensor(each, dtype=torch.float32) for each in (result, wanted))
        comparison = comparison_of(result, wanted, limit)
        found = errors_of(comparison, name, "of the reference")
        worst = max(worst, math.inf if found.wrong and found.largest is None else found.largest or 0.0)
        difference = max(difference, found.difference)
        if found.wrong:
            text = f"{name} is wrong in {found.wrong:,} of {comparison.actual.numel():,} elements: {found.first}"
            return Compared(worst, difference, text, _sub_class(comparison))
    return Compared(worst, difference)


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
