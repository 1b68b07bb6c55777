"""Compares the results of a candidate with a reference: gives both verdicts, and the class of a mismatch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from opatlas.run.result_check import RELATIVE_TOLERANCE, SMALLEST, within_range

#: The limit of the second verdict: the largest difference of any element.
LIMIT = 1e-3
#: Elements that are compared at once, in float64.
_AT_ONCE = 1 << 24
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
        relative = limit * RELATIVE_TOLERANCE.get(result.dtype, 0.0)
        own = _compare(result, wanted.to(result.device), relative)
        worst, difference, elements = max(worst, own.error), max(difference, own.difference), elements + result.numel()
        if own.wrong:
            return Compared(worst, difference, elements, f"{name} {own.wrong}", _sub_class(result, wanted, relative))
    return Compared(worst, difference, elements)


def _compare(result: torch.Tensor, expected: torch.Tensor, relative: float) -> Compared:
    """Compares all elements; one may be off by relative * (|expected| + rms(expected)), or by the smallest number."""
    result, expected = result.detach().reshape(-1), expected.detach().reshape(-1)
    if not result.numel():
        return Compared(0.0, 0.0, 0)
    squares, finite = 0.0, 0
    smallest = SMALLEST.get(result.dtype, 0.0) if relative else 0.0
    for part in _pieces(expected):
        values = within_range(_wide(part), result.dtype)
        values = values[values.isfinite()]
        squares, finite = squares + float(values.abs().square().sum()), finite + values.numel()
    rms = math.sqrt(squares / finite) if finite else 0.0
    error = difference = 0.0
    wrong, first = 0, ""
    for at, (own, wanted) in enumerate(zip(_pieces(result), _pieces(expected), strict=True)):
        got, want = _wide(own), within_range(_wide(wanted), result.dtype)
        same = (got == want) | (got.isnan() & want.isnan())
        off = (got - want).abs().nan_to_num(nan=math.inf)
        off = torch.where(same, torch.zeros_like(off), off)
        allowed = relative * (want.abs().nan_to_num(posinf=0.0) + rms) + smallest
        share = torch.where(same, torch.zeros_like(off), off / allowed)
        difference, error = max(difference, float(off.max())), max(error, float(share.max()))
        bad = share > 1
        count = int(bad.sum())
        if count and not wrong:
            place = int(bad.nonzero()[0])
            first = f"{got[place].item():.6g} in place of {want[place].item():.6g} at element {at * _AT_ONCE + place:,}"
        wrong += count
    text = f"is wrong in {wrong:,} of {result.numel():,} elements: {first}" if wrong else ""
    return Compared(error, difference, result.numel(), text)


def _sub_class(result: torch.Tensor, expected: torch.Tensor, relative: float) -> str:
    step = -(-result.numel() // _CLASSIFIED)
    wanted = within_range(_wide(expected.detach().reshape(-1)[::step]), result.dtype).cpu()
    own = _wide(result.detach().reshape(-1)[::step]).cpu()
    if own.is_complex():
        return "other"
    return mismatch_sub_class(own.numpy(), wanted.numpy(), relative)


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.complex128 if values.is_complex() else torch.float64)


def _pieces(values: torch.Tensor) -> Iterator[torch.Tensor]:
    for at in range(0, values.numel(), _AT_ONCE):
        yield values[at : at + _AT_ONCE]


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
