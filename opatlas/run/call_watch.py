"""Observes the call of a kernel: which inputs the kernel changes, and which operators of torch it calls.

torch counts its own changes of a tensor. Changes that bypass torch (numpy, ctypes, a kernel that receives an address)
are found by comparing values with a copy.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opatlas.run.devices.device import kind_named
from opatlas.run.stand_in import REST

#: Number of bytes of a tensor's memory that are compared; of a larger tensor this much is compared in blocks.
COMPARED_BYTES = 256 << 10
_BLOCK_BYTES = 4 << 10


class InputWatch:
    """Records the input tensors of a call, and finds the inputs that the call changed."""

    def __init__(self, inputs: Mapping[int | str, Any], *, declared: Container[int | str], seed: int) -> None:
        """
        Args:
            inputs: the kernel's inputs by position or name; tensors in lists and mappings are included.
            declared: positions and names of the inputs that the kernel may change.
            seed: selects the blocks of a large tensor that are compared.
        """
        self._inputs = [
            _Input(place, name, tensor, _version(tensor), _MemoryCopy.of(tensor, seed))
            for place, value in inputs.items()
            if place not in declared
            for name, tensor in _tensors(f"argument {place!r}", value)
        ]

    def allow(self, tensors: Sequence[torch.Tensor]) -> None:
        """Lets the call change some tensors, and other views of their memory."""
        memories = {memory for memory in map(_memory, tensors) if memory is not None}
        self._inputs = [each for each in self._inputs if _memory(each.tensor) not in memories]

    def changed(self) -> list[tuple[int | str, str]]:
        """Returns the place of each changed input and its description ("argument 2[1]"). Waits for the device."""
        return [(each.place, each.name) for each in self._inputs if each.is_changed()]


@dataclass(frozen=True)
class _Input:
    place: int | str
    name: str
    tensor: torch.Tensor
    version: int | None
    compared: _MemoryCopy | None

    def is_changed(self) -> bool:
        if _version(self.tensor) != self.version:
            return True
        return self.compared is not None and self.compared.is_changed()


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the tensors of an argument with their names."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(f"{name}[{key!r}]", item)
    elif isinstance(value, (list, tuple)):
        for i, item in enumerate(value):
            yield from _tensors(f"{name}[{i}]", item)


def _version(tensor: torch.Tensor) -> int | None:
    """Returns how often torch has changed a tensor or its base; None if torch does not count the changes."""
    return None if tensor.is_inference() else tensor._version


@dataclass(frozen=True)
class _MemoryCopy:
    """The compared part of a tensor, and a copy of that part.

    Attributes:
        blocks: numbers of the compared blocks of memory; None: all memory.
    """

    tensor: torch.Tensor
    blocks: torch.Tensor | None
    copy: torch.Tensor

    @classmethod
    def of(cls, tensor: torch.Tensor, seed: int) -> _MemoryCopy | None:
        """Copies the compared part of a tensor; returns None if the values of the tensor cannot be compared."""
        if tensor.device.type == "meta" or _memory(tensor) is None:
            return None
        if not kind_named(tensor.device.type).has_bytes:
            return cls(tensor, None, _bytes(tensor)) if tensor.nbytes <= COMPARED_BYTES else None
        memory = _bytes(tensor)
        blocks = _draw_blocks(len(memory), seed, tensor.device) if len(memory) > COMPARED_BYTES else None
        return cls(tensor, blocks, _part(memory, blocks).clone())

    def is_changed(self) -> bool:
        return not torch.equal(self.copy, _part(_bytes(self.tensor), self.blocks))


def _memory(tensor: torch.Tensor) -> int | None:
    """Returns the address of a tensor's memory; None for sparse tensors and wrappers, which have no memory."""
    try:
        address = tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return None
    return address if address != 0 or not tensor.numel() else None


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the whole memory behind a tensor or view; on devices not in `_HAVE_BYTES` a copy of the tensor."""
    if not kind_named(tensor.device.type).has_bytes:
        return tensor.cpu().contiguous().view(-1).view(torch.uint8)
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _part(memory: torch.Tensor, blocks: torch.Tensor | None) -> torch.Tensor:
    """Returns the blocks of a memory, and its last bytes if these are not a block."""
    if blocks is None:
        return memory
    whole = len(memory) // _BLOCK_BYTES * _BLOCK_BYTES
    drawn = memory[:whole].view(-1, _BLOCK_BYTES).index_select(0, blocks).view(-1)
    return drawn if whole == len(memory) else torch.cat([drawn, memory[-_BLOCK_BYTES:]])


def _draw_blocks(size: int, seed: int, device: torch.device) -> torch.Tensor:
    """Draws block numbers: the first and last block, and one of each stretch, so that a change of two stretches shows.

    The copy to a GPU does not wait for the work before.
    """
    stretches, blocks = COMPARED_BYTES // _BLOCK_BYTES, size // _BLOCK_BYTES
    ends = [blocks * (i + 1) // stretches for i in range(stretches)]
    draw = random.Random(seed).random
    drawn = [end + int(draw() * (after - end)) for end, after in itertools.pairwise(ends)]
    return torch.tensor([0, *drawn, blocks - 1]).to(device, non_blocking=True)


#: Operators other than views that neither compute nor copy. `_local_scalar_dense` reads a number. The first product of
#: a process asks for the features of the CPU.
_FREE = {
    "_is_mkldnn_bf16_supported",
    "_is_mkldnn_fp16_supported",
    "_local_scalar_dense",
    "_unsafe_view",
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
}


class OperatorMode(TorchDispatchMode):
    """Makes the calls of operators while it is active. A subclass overrides `make`."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch imports its compiler, which takes a second in every device process.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return self.make(func, args, kwargs or {})

    def make(self, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Makes a call, and returns its return value."""
        return operator(*arguments, **keywords)


class OperatorCount(OperatorMode):
    """Records the operators that are called while it is active, without views and allocations.

    An operator that launches several kernels counts as one, because this is how the device does that operation.

    Attributes:
        names: names of the operators in their order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def make(self, operator: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        if not _is_free(operator):
            self.names.append(operator.overloadpacket.__name__)
        return operator(*arguments, **keywords)


def count_operators(call: Callable[[], object], repeat: Callable[[], object]) -> list[str]:
    """Runs a call and returns the operators that the call uses; the last one is REST if the count failed there.

    Args:
        call: makes the call.
        repeat: makes the same call with fresh inputs; used if the count makes the call fail.
    """
    count = OperatorCount()
    try:
        with count:
            call()
    except RuntimeError as error:
        if "Creating a new Tensor subclass" not in str(error):
            raise
        # torch's causal bias cannot be created while operators are counted.
        repeat()
        return [*count.names, REST]
    return count.names


def may_be_compiled(impl: Callable[..., Any]) -> bool:
    """Returns whether torch.compile may have compiled a function or a part of the function.

    torch does not use the compiled code while operators are counted. A function of torch that is written in C++ is not
    compiled.
    """
    if isinstance(impl, BuiltinFunctionType | MethodDescriptorType):
        return False
    return "torch._dynamo" in sys.modules and not (getattr(impl, "__module__", None) or "").startswith(
        "opatlas.bench.implementations.torch."
    )


@cache
def _is_free(operator: torch._ops.OpOverload) -> bool:
    is_view = any(each.alias_info and not each.alias_info.is_write for each in operator._schema.returns)
    return is_view or operator.overloadpacket.__name__ in _FREE
