"""Tensors in memory that two processes share: forms, bytes, the tensors of calls, and what memory holds before.

No object travels between the processes: a form says dtype, shape and strides, and the memory has the bytes.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import torch

from opatlas.outer.judging.judgement import CandidateRejected, ErrorClass
from opatlas.run.kernel_call import OperatorMode
from opatlas.run.process.messages import ProcessMessage

#: Each call, and the reference, starts from this state of torch's generators, for tasks with dropout.
CALL_SEED = 0
#: Tensors begin at multiples of this number of bytes.
_ALIGNED = 64
#: Bytes before and behind each tensor that a candidate gets. A multiple of the alignment of torch's allocators.
MARGIN_BYTES = 4096
#: Factors of changed elements. Signs, zeros and ranges stay, so that a triangular matrix stays one.
_FACTORS = (0.5, 0.9)


class TensorForm(msgspec.Struct, frozen=True, tag=True):
    """A strided tensor, without its values.

    Attributes:
        dtype: name of torch's dtype ("float32").
        shape, stride: in elements.
        offset: where the bytes begin in the shared memory; below 0: they are not in it.
        device: type of the device that it was on.
    """

    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = -1
    device: str = "cpu"
    requires_grad: bool = False
    kind: ClassVar[str] = "Tensor"
    has_value: ClassVar[bool] = True

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype. Raises ValueError if torch has none of this name."""
        found = getattr(torch, self.dtype, None)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"{self.dtype!r} is no dtype")
        return found

    @property
    def span(self) -> int:
        """The number of elements from the first to the last one: an expanded tensor has few, a slice has gaps."""
        if 0 in self.shape:
            return 0
        return sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True)) + 1

    @property
    def nbytes(self) -> int:
        """The bytes of these elements."""
        return self.span * self.torch_dtype.itemsize

    @classmethod
    def of(cls, tensor: torch.Tensor, offset: int = -1) -> TensorForm:
        """Returns the form of a tensor."""
        name = str(tensor.dtype).removeprefix("torch.")
        shape, stride = tuple(tensor.shape), tuple(tensor.stride() if is_dense(tensor) else ())
        return cls(name, shape, stride, offset, tensor.device.type, tensor.requires_grad)


class Plain(msgspec.Struct, frozen=True, tag=True):
    """A number, a text or None; `kind` is the type, also of another object, whose value does not travel."""

    kind: str
    value: bool | int | float | str | None = None

    @classmethod
    def of(cls, value: Any) -> Plain:
        kind = type(value)
        is_huge = kind is int and not -(2**63) <= value < 2**63
        travels = kind in _TRAVELS and not is_huge
        return cls(kind.__name__, repr(value) if kind is complex else value if travels else None)

    @property
    def has_value(self) -> bool:
        """Whether the value travels."""
        return self.value is not None or self.kind == "NoneType"

    @property
    def object(self) -> Any:
        """The value; None where it did not travel."""
        return complex(str(self.value)) if self.kind == "complex" else self.value


_TRAVELS = (bool, int, float, str, type(None))
#: What a value in a message is.
Leaf = TensorForm | Plain


def leaf_of(value: Any) -> Leaf:
    """Returns what a message says of a value, without the bytes of a tensor."""
    return TensorForm.of(value) if isinstance(value, torch.Tensor) else Plain.of(value)


def is_dense(tensor: torch.Tensor) -> bool:
    """Returns whether a tensor is strided, so that it has a form."""
    return tensor.layout is torch.strided and not tensor.is_quantized


def elements_of(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the elements of a tensor from the first to the last one in memory."""
    return tensor.as_strided((TensorForm.of(tensor).span,), (1,))


class Purpose(Enum):
    """What a call is for.

    REHEARSAL is the call of nothing before the candidate is imported. AGAIN repeats the inputs of the call before, NEAR
    changes them in 0.2 percent of the elements.
    """

    REHEARSAL = "rehearsal"
    WHOLE = "whole"
    AGAIN = "again"
    NEAR = "near"
    TIMED = "timed"


class Inputs(ProcessMessage, frozen=True):
    """The inputs of a call, whose tensors are in the memory; `results` are the forms of a rehearsal's results."""

    leaves: tuple[Leaf, ...]
    weights: dict[str, TensorForm]
    results: tuple[Leaf, ...] = ()


class SharedMemory:
    """Bytes that two processes map, or that one process has alone."""

    def __init__(self, size: int, path: Path | None = None, *, is_new: bool = False) -> None:
        """`path` is the file; None: the memory of this process alone. Raises OSError."""
        if path is None:
            self._bytes: bytearray | mmap.mmap = bytearray(max(size, 1))
            return
        with open(path, "w+b" if is_new else "r+b") as file:
            if is_new:
                file.truncate(max(size, 1))
            self._bytes = mmap.mmap(file.fileno(), max(size, 1))

    def __len__(self) -> int:
        return len(self._bytes)

    def write(self, tensors: Sequence[Any], start: int = 0) -> list[Leaf]:
        """Writes the elements of the tensors among values, one behind the other. Returns the leaves of all values.

        A tensor for which there is no room has an offset below 0.
        """
        leaves: list[Leaf] = []
        for value in tensors:
            if type(value) not in (torch.Tensor, torch.nn.Parameter):
                leaves.append(Plain.of(value))
                continue
            form = TensorForm.of(value, start)
            if start + form.nbytes > len(self):
                leaves.append(TensorForm.of(value))
                continue
            if form.span:
                self._view(form).copy_(elements_of(value.detach()))
            start += -(-form.nbytes // _ALIGNED) * _ALIGNED
            leaves.append(form)
        return leaves

    def read(self, form: TensorForm) -> torch.Tensor:
        """Returns the tensor of a form, whose memory this is. Raises ValueError for a form that does not fit."""
        if form.span == 0:
            return torch.empty(form.shape, dtype=form.torch_dtype)
        if form.offset < 0 or form.offset + form.nbytes > len(self) or min(form.stride, default=0) < 0:
            raise ValueError(f"{form} is not in the memory")
        return self._view(form).as_strided(form.shape, form.stride)

    def assign(self, live: torch.Tensor, form: TensorForm) -> None:
        """Gives a tensor of the same form its values. `.data` shares the memory but not the version counter."""
        if form.span:
            elements_of(live.data).copy_(self._view(form))

    def _view(self, form: TensorForm) -> torch.Tensor:
        return torch.frombuffer(self._bytes, dtype=form.torch_dtype, count=form.span, offset=form.offset)


def room(tensors: Iterable[Any]) -> int:
    """Returns the bytes that tensors need in a memory, and some for further ones."""
    found = [TensorForm.of(each).nbytes for each in tensors if isinstance(each, torch.Tensor)]
    return sum(-(-each // _ALIGNED) * _ALIGNED for each in found) + _ALIGNED


def vary(tensor: torch.Tensor, seed: int, share: float = 1.0) -> None:
    """Multiplies a share of the elements, at random places, by one factor from a seed. Does not wait for the device."""
    data = elements_of(tensor.data)
    places: Any = slice(None)
    if share < 1:
        generator = torch.Generator(device=data.device).manual_seed(seed)
        count = max(1, int(data.numel() * share))
        places = torch.randint(data.numel(), (count,), generator=generator, device=data.device)
    low, high = _FACTORS
    factor = low + (high - low) * (seed * 0x9E3779B1 % 0x10000 / 0x10000)
    # torch has no arithmetic of FP8. A place that occurs twice gets the same value twice.
    changed = (data[places].float() if data.element_size() == 1 else data[places]) * factor
    if data.element_size() == 1:
        data.view(torch.uint8)[places] = changed.to(data.dtype).view(torch.uint8)
    else:
        data[places] = changed


def may_vary(leaf: Any) -> bool:
    """Returns whether some elements of a leaf may change: no integers, which may be indices, nor of a symmetric one."""
    if not isinstance(leaf, torch.Tensor) or not is_dense(leaf) or not leaf.is_floating_point() or not leaf.numel():
        return False
    if TensorForm.of(leaf).span != leaf.numel():
        return False
    return not (leaf.dim() == 2 and leaf.shape[0] == leaf.shape[1] > 1 and torch.equal(leaf, leaf.T))


def live_tensor(form: TensorForm, device: torch.device, margins: bool) -> torch.Tensor:
    """Returns a tensor of a form that lies between two margins of NaN, and so not at the beginning of its storage."""
    dtype = form.torch_dtype
    margin = MARGIN_BYTES // dtype.itemsize if margins and form.span else 0
    buffer = torch.empty(form.span + 2 * margin, dtype=dtype, device=device)
    if margin:
        poison(buffer)
    # Not a view: it has no base, and a version counter of its own.
    live = torch.empty(0, dtype=dtype, device=device)
    live.set_(buffer.untyped_storage(), margin, form.shape, form.stride)
    return live.requires_grad_(form.requires_grad)


def expect_margins(tensors: Iterable[torch.Tensor]) -> None:
    """Raises CandidateRejected if something wrote outside a tensor of `live_tensor`. Waits for the device."""
    for number, tensor in enumerate(tensors):
        if margin := tensor.storage_offset():
            memory = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())
            poison(expected := torch.empty_like(memory[:margin]))
            parts = (memory[:margin], memory[-margin:])
            if not all(torch.equal(part.view(torch.uint8), expected.view(torch.uint8)) for part in parts):
                text = f"the candidate wrote outside the memory of input {number}: check the bounds of its stores"
                raise CandidateRejected(ErrorClass.HACK, "out-of-bounds", text)


#: Operators that return memory as they find it.
_ALLOCATIONS = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"})
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
