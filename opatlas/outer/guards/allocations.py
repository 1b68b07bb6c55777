"""Fills memory that a candidate has not written with NaN, so that no earlier result is found there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from opatlas.run.call_watch import OperatorMode

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
