"""Finds the inputs that a kernel has changed although its replay does not say so.

torch counts the changes of a tensor that it makes itself. What goes round torch (numpy, ctypes, a kernel that gets an
address) shows in the values only, which are compared with a copy.
"""

from __future__ import annotations

import random
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: A tensor's memory of at most so many bytes is compared in full; of a larger one as much is compared, in blocks.
COMPARED_BYTES = 256 << 10
_BLOCK_BYTES = 4 << 10
#: Devices where a tensor's memory can be read as bytes. Elsewhere a small tensor is copied to the host.
_HAVE_BYTES = ("cpu", "cuda")


def by_place(arguments: Sequence[Any], keywords: Mapping[str, Any]) -> dict[int | str, Any]:
    """The inputs of a call by their position or name."""
    inputs: dict[int | str, Any] = dict(enumerate(arguments))
    inputs.update(keywords)
    return inputs


class InputWatch:
    """Remembers the tensors of a call, and tells which of them were changed since."""

    def __init__(self, inputs: Mapping[int | str, Any], *, declared: Container[int | str], seed: int) -> None:
        """
        Args:
            inputs: what the kernel is called with, as `by_place` gives it; tensors in lists and mappings are watched
                too.
            declared: positions and names of those that the kernel may change.
            seed: decides which blocks of a large tensor are compared.
        """
        self._inputs = [
            _Input(place, name, tensor, _version(tensor), _values(tensor, seed), seed)
            for place, value in inputs.items()
            if place not in declared
            for name, tensor in _tensors(f"argument {place!r}", value)
        ]

    def changed(self) -> list[tuple[int | str, str]]:
        """Position or name of each argument that was changed, and what of it: "argument 2[1]". Waits for the device."""
        return [(each.place, each.name) for each in self._inputs if each.is_changed()]


@dataclass(frozen=True)
class _Input:
    place: int | str
    name: str
    tensor: torch.Tensor
    version: int | None
    values: torch.Tensor | None
    seed: int

    def is_changed(self) -> bool:
        if _version(self.tensor) != self.version:
            return True
        return self.values is not None and not torch.equal(self.values, _part(self.tensor, self.seed))


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of an argument, each with its name."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(f"{name}[{key!r}]", item)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _tensors(f"{name}[{i}]", item)


def _version(tensor: torch.Tensor) -> int | None:
    """How often torch has changed a tensor, or its base; None where torch does not count."""
    return None if tensor.is_inference() else tensor._version


def _values(tensor: torch.Tensor, seed: int) -> torch.Tensor | None:
    """A copy of what is compared of a tensor; None where only its version tells."""
    if tensor.device.type in _HAVE_BYTES:
        return _part(tensor, seed).clone()
    if tensor.device.type == "meta" or tensor.nbytes > COMPARED_BYTES:
        return None
    return _part(tensor, seed)


def _part(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    if tensor.device.type not in _HAVE_BYTES:
        return tensor.cpu().contiguous().view(-1).view(torch.uint8)
    # All of the memory that a view shows a part of.
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
    size = len(memory)
    if size <= COMPARED_BYTES:
        return memory
    count = COMPARED_BYTES // _BLOCK_BYTES
    draw = random.Random(seed)
    # One block of each stretch, so that no longer change is missed; the first and the last bytes are in.
    ends = [size * (i + 1) // count for i in range(count)]
    starts = [draw.randint(start, end - _BLOCK_BYTES) for start, end in zip([0, *ends], ends, strict=False)]
    starts[0], starts[-1] = 0, size - _BLOCK_BYTES
    return torch.cat([memory[start : start + _BLOCK_BYTES] for start in starts])
