"""The message of a row on one rank: its tensors, and what they must hold when the collective is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import torch

from opatlas.model.communication import BY_KERNEL_TYPE
from opatlas.model.errors import InvalidRow, WrongResult
from opatlas.model.schema import DTYPE, MESSAGE_BYTES, NUM_DEVICES
from opatlas.model.slots import known_dtype

#: Of bfloat16 and int8 every whole number up to here is one, so that a sum of so many small ones is exact in any order.
_LARGEST = 3
_MOST_SUMMANDS = 40
#: Elements that are made, or compared, at a time: their numbers take eight bytes each meanwhile.
_AT_ONCE = 1 << 22
#: What a result holds before: no element may be left as it was.
_BEFORE = 99
#: A larger result is compared in places: so many stretches, evenly, the first and the last element in them.
_MOST_COMPARED = 1 << 22
_STRETCHES = 64
#: Odd and without a pattern (Knuth's multiplicative hash). A rank's share must not simply be added: the shares of
#: seven ranks would be seven neighbours modulo 7, whose sum is the same everywhere.
_HASH, _RANK_HASH = 2654435761, 0x5851F42D4C95


class Message:
    """A row of a collective as one rank of its group has it.

    Each rank gives whole numbers from -3 to 3 that depend on its number and on the place of the element: chunks
    that were swapped, left out or summed twice show.

    Attributes:
        count: elements of a message.
        rank, size: this rank, and how many there are.
    """

    def __init__(self, kernel_type: str, cells: Mapping[str, str], device: torch.device, rank: int, size: int) -> None:
        """Raises InvalidRow where the cells are no message of this group."""
        collective = BY_KERNEL_TYPE.get(kernel_type)
        dtype = known_dtype(cells[DTYPE])
        if collective is None or dtype is None:
            raise InvalidRow(f"no collective {kernel_type}, or column '{DTYPE}' = {cells[DTYPE]!r} is no dtype of one")
        if cells[NUM_DEVICES] != str(size):
            raise InvalidRow(f"column '{NUM_DEVICES}' = {cells[NUM_DEVICES]!r}, and the group has {size} ranks")
        message_bytes = int(cells[MESSAGE_BYTES])
        if message_bytes != collective.message_bytes(message_bytes, size, dtype.bytes):
            raise InvalidRow(
                f"column '{MESSAGE_BYTES}' = {message_bytes}: these are no whole elements of {dtype.name}"
                + (f", as many for each of {size} devices" if collective.in_parts else "")
            )
        self.kernel_type = kernel_type
        self.count = message_bytes // dtype.bytes
        self.rank, self.size = rank, size
        self.device = device
        self.dtype: torch.dtype = getattr(torch, dtype.torch_name)

    def given(self, chunks: int = 1) -> torch.Tensor:
        """What this rank gives: a message, or one for each of some ranks."""
        tensor = torch.empty(chunks * self.count, dtype=self.dtype, device=self.device)
        for start, stop in _pieces(0, tensor.numel()):
            tensor[start:stop] = self.values(self.rank, start, stop)
        return tensor

    def empty(self, chunks: int = 1) -> torch.Tensor:
        """Room for what this rank gets."""
        return torch.full((chunks * self.count,), _BEFORE, dtype=self.dtype, device=self.device)

    def values(self, rank: int, start: int, stop: int) -> torch.Tensor:
        """Elements `start` to `stop` of what a rank gives, as int64."""
        place = torch.arange(start, stop, dtype=torch.int64, device=self.device)
        mixed = ((place + 1) * _HASH) ^ ((rank + 1) * _RANK_HASH)
        mixed = (mixed ^ (mixed >> 29)) * _HASH
        numbers = (mixed >> 24) % (2 * _LARGEST + 1) - _LARGEST
        groups = -(-self.size // _MOST_SUMMANDS)
        # Of many ranks only some give another number than 0 to the same sum.
        return numbers if groups == 1 else numbers * (place % groups == rank % groups)

    def summed(self, start: int, stop: int) -> torch.Tensor:
        """The sum over all ranks of elements `start` to `stop` of what they give."""
        total = self.values(0, start, stop)
        for rank in range(1, self.size):
            total += self.values(rank, start, stop)
        return total

    def of_first(self, start: int, stop: int) -> torch.Tensor:
        """Elements `start` to `stop` of what the first rank gives."""
        return self.values(0, start, stop)

    def gathered(self, start: int, stop: int) -> torch.Tensor:
        """Elements of the messages of all ranks, one behind the other."""
        return self._of_ranks(start, stop, self.count, 0)

    def exchanged(self, start: int, stop: int) -> torch.Tensor:
        """Elements of what all ranks give to this one, one behind the other."""
        part = self.count // self.size
        return self._of_ranks(start, stop, part, self.rank * part)

    def scattered(self, start: int, stop: int) -> torch.Tensor:
        """Elements of this rank's chunk of the sum."""
        return self.summed(self.rank * self.count + start, self.rank * self.count + stop)

    def check(self, result: torch.Tensor, expected: Callable[[int, int], torch.Tensor]) -> int:
        """Compares what this rank got; gives how many elements were compared.

        Args:
            expected: gives elements `start` to `stop` of what it must be, exactly.

        Raises:
            WrongResult: with the first element that is something else.
        """
        compared = 0
        for start, stop in _compared(result.numel()):
            wrong = result[start:stop].to(torch.int64) != expected(start, stop)
            # A fraction is cut off by the conversion, and is wrong as well.
            wrong |= result[start:stop] != result[start:stop].round() if self.dtype.is_floating_point else False
            if bool(wrong.any()):
                first = int(wrong.nonzero()[0])
                raise WrongResult(
                    f"rank {self.rank} of {self.size} holds {result[start + first].item()} as element {start + first} "
                    f"of {result.numel()}, and must hold {int(expected(start, stop)[first])} "
                    f"({int(wrong.sum())} of {stop - start} elements there are wrong)"
                )
            compared += stop - start
        return compared

    def _of_ranks(self, start: int, stop: int, part: int, offset: int) -> torch.Tensor:
        """Of parts of all ranks, each from `offset` of what the rank gives, one behind the other."""
        found = []
        while start < stop:
            rank, at = divmod(start, part)
            length = min(part - at, stop - start)
            found.append(self.values(rank, offset + at, offset + at + length))
            start += length
        return torch.cat(found)


def _pieces(start: int, stop: int) -> Iterator[tuple[int, int]]:
    for at in range(start, stop, _AT_ONCE):
        yield at, min(at + _AT_ONCE, stop)


def _compared(count: int) -> Iterator[tuple[int, int]]:
    if count <= _MOST_COMPARED:
        yield from _pieces(0, count)
        return
    length = _MOST_COMPARED // _STRETCHES
    for stretch in range(_STRETCHES):
        start = (count - length) * stretch // (_STRETCHES - 1)
        yield start, start + length
