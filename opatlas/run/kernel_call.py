"""The call of a kernel for one row: its set-up, its results, and what it changes and calls.

torch counts its own changes of a tensor. Changes that bypass torch (numpy, ctypes, a kernel that receives an address)
are found by comparing values with a copy.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from time import perf_counter
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from opatlas.run.devices.device import kind_named
from opatlas.run.implementation import Prepared
from opatlas.run.job import REST

#: Results of a kernel in the order of the torch function; None for a result that an implementation does not compute.
Results = tuple[torch.Tensor | None, ...]


class KernelCall:
    """A kernel with the arguments of one row.

    Attributes:
        inputs: the arguments by position or name.
        prepared: the `Prepared` that the kernel has returned; None if the kernel is called with the arguments.
        set_up_s: seconds from the start of the set-up to the end of the first call on the host, compilation included.
    """

    def __init__(
        self,
        kernel: Callable[..., Any],
        arguments: Sequence[Any],
        keywords: Mapping[str, Any],
        *,
        mutates: Sequence[int | str] = (),
        overwrites: Sequence[int | str] = (),
        may_lack_results: bool = False,
    ) -> None:
        """
        Args:
            kernel: called with the arguments; may return `Prepared`.
            mutates, overwrites: positions or names of changed arguments, as for `Replay`.
            may_lack_results: whether a None in the return value means a result that the kernel does not compute.
        """
        #: Makes one call; it is timed, so it has nothing to decide.
        self._invoke: Callable[[], Any] = partial(kernel, *arguments, **keywords)
        self._arguments = arguments
        self._keywords = keywords
        self._may_lack_results = may_lack_results
        self.inputs: dict[int | str, Any] = dict(enumerate(arguments))
        self.inputs.update(keywords)
        self._declared = mutates or overwrites
        self._unmodified = {place: _clone(self.inputs[place]) for place in mutates}
        #: Tensors that a prepared call changes, with their values before the first call.
        self._changes: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._latest: Any = None
        self.prepared: Prepared | None = None
        self.set_up_s = 0.0

    def start(self) -> None:
        """Calls the kernel with the arguments: the set-up of a kernel that returns `Prepared`, else the first call."""
        start = perf_counter()
        latest = self._invoke()
        if isinstance(latest, Prepared):
            self.prepared, self._may_lack_results, self._invoke = latest, True, latest.call
            self._changes = [(tensor, tensor.clone()) for tensor in latest.changes]
        else:
            self._latest = latest
        self.set_up_s += perf_counter() - start

    def restart(self) -> None:
        """Does the same as `start`, with restored tensors."""
        self.restore()
        self.start()

    def launch(self) -> None:
        """Calls the kernel once. This method is timed: a call of the object itself would take 0.1 us more."""
        self._latest = self._invoke()

    def first_prepared(self) -> None:
        """Makes the first call of a kernel that has returned `Prepared`; compilation in this call is set-up."""
        start = perf_counter()
        self.launch()
        self.set_up_s += perf_counter() - start

    def repeat(self) -> None:
        """Restores the changed tensors, and calls the kernel once."""
        self.restore()
        self.launch()

    @property
    def changes_tensors(self) -> bool:
        """Whether tensors must be restored before each call."""
        return bool(self._unmodified or self._changes)

    def changed(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Returns the tensors that a call changes, and their values before the first one."""
        declared = ((self.inputs[place], value) for place, value in self._unmodified.items())
        tensors = [each for both in declared for each in zip(*map(flat_tensors, both), strict=True)]
        return [*tensors, *self._changes]

    def restore(self) -> None:
        """Gives the changed tensors the values that they had before the first call."""
        for tensor, original in self.changed():
            tensor.copy_(original)

    def _restore_changes(self) -> None:
        for changed, original in self._changes:
            changed.copy_(original)

    def forget(self) -> None:
        """Drops the values of changed tensors before the first call: later calls begin with what is there."""
        self._unmodified, self._changes = {}, []

    def results(self) -> Results:
        """Returns the results of the latest call in the layout of the row; () if there is none.

        A call that returns None has the declared changed arguments as results.
        """
        latest = self._latest
        if latest is not None and self.prepared is not None and self.prepared.results is not None:
            latest = self.prepared.results(latest)
        if latest is None:
            return flat_tensors([self.inputs[place] for place in self._declared])
        return tensors_and_nones(latest) if self._may_lack_results else flat_tensors(latest)

    def originals(self) -> tuple[list[Any], dict[str, Any]]:
        """Returns the arguments with their values before the first call, for a formula.

        Restores the tensors that a prepared call has changed: results that share their memory lose their values.
        """
        self._restore_changes()
        return (
            [self._unmodified.get(i, value) for i, value in enumerate(self._arguments)],
            {name: self._unmodified.get(name, value) for name, value in self._keywords.items()},
        )

    def kept_results(self) -> Results:
        """Returns the results, which `originals` leaves as they are."""
        results = self.results()
        if not self._changes:
            return results
        return tuple(None if result is None else result.clone() for result in results)

    def returned(self) -> tuple[torch.Tensor, ...]:
        """Returns the tensors of the latest return value."""
        return flat_tensors(self._latest)


def flat_tensors(value: Any) -> tuple[torch.Tensor, ...]:
    """Returns the tensors in a value, in order: a tensor, or nested lists and mappings of tensors and other values."""
    return tuple(tensor for tensor in tensors_and_nones(value) if tensor is not None)


def tensors_and_nones(value: Any) -> Results:
    """Returns the tensors and the Nones in a value, in order; other values are left out."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return tuple(result for item in value for result in tensors_and_nones(item))
    return (value,) if value is None or isinstance(value, torch.Tensor) else ()


def _clone(value: Any) -> Any:
    return [tensor.clone() for tensor in value] if isinstance(value, (list, tuple)) else value.clone()


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
            _Input.of(place, name, tensor, seed)
            for place, value in inputs.items()
            if place not in declared
            for name, tensor in _tensors(f"argument {place!r}", value)
        ]

    def allow(self, tensors: Sequence[torch.Tensor]) -> None:
        """Lets the call change some tensors, and other views of their memory."""
        memories = {memory for memory in map(_memory, tensors) if memory is not None}
        self._inputs = [each for each in self._inputs if _memory(each.tensor) not in memories]

    def changed(self, *, by_value: bool = True) -> list[tuple[int | str, str]]:
        """Returns the place of each changed input and its description ("argument 2[1]").

        Args:
            by_value: whether values are compared, too, which waits for the device.
        """
        return [(each.place, each.name) for each in self._inputs if each.is_changed(by_value)]


@dataclass(frozen=True)
class _Input:
    """A tensor, and a copy of the compared part of its memory.

    Attributes:
        version: how often torch had changed the tensor or its base; None if torch does not count the changes.
        copy: None if the values of the tensor cannot be compared.
        blocks: numbers of the compared blocks of memory; None: all memory.
    """

    place: int | str
    name: str
    tensor: torch.Tensor
    version: int | None
    copy: torch.Tensor | None
    blocks: torch.Tensor | None = None

    @classmethod
    def of(cls, place: int | str, name: str, tensor: torch.Tensor, seed: int) -> _Input:
        own = place, name, tensor, _version(tensor)
        has_bytes = kind_named(tensor.device.type).has_bytes
        is_unknown = tensor.device.type == "meta" or _memory(tensor) is None
        if is_unknown or not (has_bytes or tensor.nbytes <= COMPARED_BYTES):
            return cls(*own, None)
        memory = _bytes(tensor)
        if not has_bytes:
            return cls(*own, memory)
        blocks = _draw_blocks(len(memory), seed, tensor.device) if len(memory) > COMPARED_BYTES else None
        return cls(*own, _part(memory, blocks).clone(), blocks)

    def is_changed(self, by_value: bool) -> bool:
        if _version(self.tensor) != self.version:
            return True
        return (
            by_value and self.copy is not None and not torch.equal(self.copy, _part(_bytes(self.tensor), self.blocks))
        )


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
    return None if tensor.is_inference() else tensor._version


def _memory(tensor: torch.Tensor) -> int | None:
    """Returns the address of a tensor's memory; None for sparse tensors and wrappers, which have no memory."""
    try:
        address = tensor.untyped_storage().data_ptr()
    except RuntimeError:
        return None
    return address if address != 0 or not tensor.numel() else None


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the whole memory behind a tensor or view; a copy of the tensor where torch does not read bytes."""
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
        if not is_free(operator):
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
    # In a checkout the package is `bench`, in a wheel `opatlas.bench`.
    own = (getattr(impl, "__module__", None) or "").removeprefix("opatlas.")
    return "torch._dynamo" in sys.modules and not own.startswith("bench.implementations.torch.")


@cache
def is_free(operator: torch._ops.OpOverload) -> bool:
    """Returns whether an operator neither computes nor copies."""
    is_view = any(each.alias_info and not each.alias_info.is_write for each in operator._schema.returns)
    return is_view or operator.overloadpacket.__name__ in _FREE
