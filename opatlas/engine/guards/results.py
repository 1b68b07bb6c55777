"""Examines the results of a candidate: whether they are plain tensors, and whether two results are the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from opatlas.candidates.judgement import ErrorClass
from opatlas.candidates.rejection import CandidateRejected
from opatlas.engine.result_check import RELATIVE_TOLERANCE

#: Elements that are compared at once: the comparison needs some bytes for each.
_PART = 1 << 24

#: Results of a candidate, in order.
TensorResults = tuple[torch.Tensor, ...]


def plain_results(returned: Any, device: torch.device) -> TensorResults:
    """Returns the tensors in what a candidate returned: a tensor, or a list, tuple or dict of them.

    Raises:
        CandidateRejected: something is no plain tensor, has no memory, or lies on another device.
    """
    if returned is None:
        raise CandidateRejected(ErrorClass.INTERFACE, "none", "the candidate returned None: return the results")
    values = returned
    if type(returned) is dict:
        values = list(returned.values())
    elif type(returned) not in (list, tuple):
        values = [returned]
    results: list[torch.Tensor] = []
    for number, value in enumerate(values):
        if type(value) in (list, tuple, dict):
            results += plain_results(value, device)
            continue
        _expect_plain(value, number, device)
        results.append(value)
    return tuple(results)


def _expect_plain(value: Any, number: int, device: torch.device) -> None:
    kind = type(value)
    if issubclass(kind, torch.Tensor) and kind not in (torch.Tensor, torch.nn.Parameter):
        raise CandidateRejected(
            ErrorClass.HACK,
            "lazy-result",
            f"result {number} is a {kind.__qualname__}: return a plain tensor that holds its values",
        )
    if not issubclass(kind, torch.Tensor):
        raise CandidateRejected(
            ErrorClass.INTERFACE, "type", f"result {number} is a {kind.__qualname__}: return tensors"
        )
    if value.device.type != device.type:
        raise CandidateRejected(
            ErrorClass.INTERFACE, "device", f"result {number} lies on {value.device}: return it on {device}"
        )
    if value.layout is not torch.strided or value.is_quantized:
        return
    try:
        address = value.untyped_storage().data_ptr()
    except RuntimeError:
        address = 0
    # A negative or conjugate view is computed when it is read.
    is_lazy = value._is_zerotensor() or value.is_neg() or value.is_conj()
    if is_lazy or (value.numel() and not address):
        raise CandidateRejected(
            ErrorClass.HACK, "lazy-result", f"result {number} has no values in memory: compute it in the call"
        )


def same_results(results: TensorResults, known: TensorResults) -> torch.Tensor:
    """Returns whether results are those of an earlier call on equal inputs, as a tensor of one bool on the device.

    Two tolerances apart are the same: sums may be computed in another order. Does not wait for the device.
    """
    device = known[0].device if known else torch.device("cpu")
    same = torch.ones((), dtype=torch.bool, device=device)
    if len(results) != len(known):
        return ~same
    for result, expected in zip(results, known, strict=True):
        if result.shape != expected.shape or result.dtype != expected.dtype:
            return ~same
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
        if result.dtype.is_complex:
            one, other, relative = torch.view_as_real(one), torch.view_as_real(other), 2e-4
        if not one.is_floating_point():
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
    return torch.float64 if dtype is torch.float64 else torch.float32


def have_equal_bits(one: TensorResults, other: TensorResults) -> bool:
    """Returns whether all elements of two results are equal. Waits for the device."""
    return len(one) == len(other) and all(
        a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(one, other, strict=True)
    )


def kept(results: Sequence[torch.Tensor]) -> TensorResults:
    """Returns copies of results, which later calls do not change."""
    return tuple(result.detach().clone() for result in results)
