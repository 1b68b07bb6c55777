"""Examines results of a candidate: whether they are plain tensors, written in the call, and the same as others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from opatlas.outer.judging.judgement import CandidateRejected, ErrorClass
from opatlas.run.call_watch import OperatorMode
from opatlas.run.result_check import RELATIVE_TOLERANCE

#: Elements that are compared at once: the comparison needs some bytes for each.
_PART = 1 << 24
#: The types of tensors that hold their values.
_PLAIN = (torch.Tensor, torch.nn.Parameter)

#: Results of a candidate in order: tensors, and whatever else it returned.
FlatResults = tuple[Any, ...]


def plain_results(returned: Any) -> FlatResults:
    """Returns the values in a return value; nested lists, tuples and mappings are flattened, views resolved.

    Raises:
        CandidateRejected: a tensor is not a plain one, or has no values in memory.
    """
    if isinstance(returned, Mapping):
        returned = list(returned.values())
    if isinstance(returned, (list, tuple)):
        return tuple(result for value in returned for result in plain_results(value))
    if isinstance(returned, torch.Tensor):
        _expect_plain(returned)
        returned = resolved(returned)
    return (returned,)


def has_views(returned: Any) -> bool:
    """Returns whether a return value holds a conjugate or negative view: torch computes one when it is read."""
    if type(returned) in _PLAIN:
        return bool(returned.is_conj() or returned.is_neg())
    if isinstance(returned, Mapping):
        returned = list(returned.values())
    return isinstance(returned, (list, tuple)) and any(map(has_views, returned))


def resolved(returned: Any) -> Any:
    """Returns a return value with the values of conjugate and negative views computed."""
    if type(returned) in _PLAIN:
        return returned.resolve_conj().resolve_neg()
    if isinstance(returned, Mapping):
        return {name: resolved(value) for name, value in returned.items()}
    return [resolved(value) for value in returned] if isinstance(returned, (list, tuple)) else returned


def _expect_plain(value: torch.Tensor) -> None:
    kind = type(value)
    if kind not in _PLAIN:
        raise CandidateRejected(
            ErrorClass.HACK,
            "lazy-result",
            f"a result is a {kind.__qualname__}: return a plain tensor that holds its values",
        )
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        return
    try:
        address = value.untyped_storage().data_ptr()
    except RuntimeError:
        address = 0
    if value._is_zerotensor() or (value.numel() and not address):
        raise lazy_result()


def lazy_result() -> CandidateRejected:
    """Returns the rejection of a candidate whose result is not computed in the call."""
    return CandidateRejected(
        ErrorClass.HACK, "lazy-result", "a result has no values of its own in memory: compute it in the call"
    )


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


def kept(results: FlatResults) -> FlatResults:
    """Returns copies of results, which later calls do not change."""
    return tuple(each.detach().clone() if isinstance(each, torch.Tensor) else each for each in results)


#: Operators that return memory as they find it.
_ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"})
#: Small blocks that are filled in the free memory of a device, and the least size of the large block.
_SMALL_BYTES, _SMALL_BLOCKS, _LEAST_BYTES = 512 << 10, 16, 4 << 20
#: Largest number that torch fills integers with.
_LARGEST = 2**62


class PoisonedAllocations(OperatorMode):
    """Fills each tensor that is allocated without values, while the mode is active."""

    def make(self, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        result = operator(*arguments, **keywords)
        if operator.overloadpacket.__name__ in _ALLOCATIONS:
            poison(result)
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
