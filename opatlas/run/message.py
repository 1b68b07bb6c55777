"""A message of a collective over HCCL, NCCL or Gloo on one rank: its tensors, the expected results, and its `replay`.

Before each sample the ranks wait for each other (`Group.device_barrier`). On a CPU they leave a barrier some
microseconds apart, and the clock of each rank runs from there to the return of its call. The time of the slowest rank
then includes the delay of the others: read durations of small messages over Gloo together with their spread. On GPUs
and NPUs the devices begin within a microsecond or two of each other, and a sample is the time of the kernels of the
collective.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from time import monotonic

import torch
from torch import distributed

from opatlas.row.columns import DTYPE, MESSAGE_BYTES, NUM_DEVICES
from opatlas.row.communication import ALL_REDUCE, BY_KERNEL_TYPE
from opatlas.row.errors import InvalidRow, Unsupported, WrongResult
from opatlas.row.slots import known_dtype
from opatlas.run.devices.device import Device
from opatlas.run.devices.system import available_cores
from opatlas.run.formula import pointwise
from opatlas.run.group import Group, ranks_of_node
from opatlas.run.instruments.instrument import Instrument, MeasureSettings
from opatlas.run.job import Job
from opatlas.run.registry import ReplaySpec, RowReplay
from opatlas.run.replay import RecordedCall
from opatlas.run.result_check import Checked
from opatlas.run.sampling import Sampling
from opatlas.text import parse_whole

#: Elements are whole numbers up to this one. bfloat16 and int8 hold a sum of 40 of them exactly, in any order.
_LARGEST = 3
_MOST_SUMMANDS = 40
#: Elements that are made or compared at once; each takes eight bytes meanwhile.
_AT_ONCE = 1 << 22
#: Value of an output tensor before the collective, which no result has.
_UNWRITTEN = 99
#: Larger results are compared in so many stretches, evenly spaced, with the first and the last element.
_MOST_COMPARED = 1 << 22
_STRETCHES = 64
#: Odd numbers without a pattern (Knuth's multiplicative hash). With a sum in place of the exclusive or, seven ranks
#: would have seven neighbouring values modulo 7, whose sum is the same at each position.
_HASH, _RANK_HASH = 2654435761, 0x5851F42D4C95


def bind_message(
    job: Job, spec: ReplaySpec, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group
) -> tuple[Message, TimedCollective]:
    """Makes `row` and `replay` of a message. Raises InvalidRow."""
    row = Message(job.kernel_type, job.cells, device.torch_device, group.rank, group.size)
    return row, TimedCollective(row, device, instrument, settings, group)


class Message:
    """A message as one rank of its group has it.

    Each rank sends whole numbers from -3 to 3 that depend on the rank and on the position of the element. Chunks that
    are swapped, left out or summed twice therefore give a wrong result.

    Attributes:
        count: number of elements of the message.
        rank: number of this rank.
        size: number of ranks.
    """

    def __init__(self, kernel_type: str, cells: Mapping[str, str], device: torch.device, rank: int, size: int) -> None:
        """
        Args:
            kernel_type, cells: the row.
            device: the device of this rank's tensors.
            rank: number of this rank, from 0.
            size: number of ranks.

        Raises:
            InvalidRow: the cells do not describe a message of a group of `size` ranks.
        """
        collective = BY_KERNEL_TYPE.get(kernel_type)
        dtype = known_dtype(cells[DTYPE])
        if collective is None or dtype is None:
            raise InvalidRow(
                f"{kernel_type} is not a collective, or column '{DTYPE}' = {cells[DTYPE]!r} is not a dtype"
            )
        if cells[NUM_DEVICES] != str(size):
            raise InvalidRow(f"column '{NUM_DEVICES}' = {cells[NUM_DEVICES]!r}, but the group has {size} ranks")
        message_bytes = parse_whole(cells[MESSAGE_BYTES])
        if not message_bytes:
            raise InvalidRow(f"column '{MESSAGE_BYTES}' = {cells[MESSAGE_BYTES]!r} is not a number of bytes above 0")
        if message_bytes != collective.message_bytes(message_bytes, size, dtype.bytes):
            raise InvalidRow(
                f"column '{MESSAGE_BYTES}' = {message_bytes} is not a whole number of elements of {dtype.name}"
                + (f" for each of {size} devices" if collective.in_parts else "")
            )
        self.kernel_type = kernel_type
        self.count = message_bytes // dtype.bytes
        self.rank, self.size = rank, size
        self.device = device
        self.dtype: torch.dtype = getattr(torch, dtype.torch_name)

    def input_tensor(self, chunks: int = 1) -> torch.Tensor:
        """Returns the tensor that this rank sends: `chunks` messages in one dimension of chunks * count elements."""
        tensor = torch.empty(chunks * self.count, dtype=self.dtype, device=self.device)
        for start, stop in _pieces(tensor.numel()):
            tensor[start:stop] = self.rank_values(self.rank, start, stop)
        return tensor

    def output_tensor(self, chunks: int = 1) -> torch.Tensor:
        """Returns a tensor for this rank's result: one dimension of chunks * count elements, all unwritten."""
        return torch.full((chunks * self.count,), _UNWRITTEN, dtype=self.dtype, device=self.device)

    def rank_values(self, rank: int, start: int, stop: int) -> torch.Tensor:
        """Returns the elements from `start` to `stop` that a rank sends, as int64."""
        position = torch.arange(start, stop, dtype=torch.int64, device=self.device)
        mixed = ((position + 1) * _HASH) ^ ((rank + 1) * _RANK_HASH)
        mixed = (mixed ^ (mixed >> 29)) * _HASH
        numbers = (mixed >> 24) % (2 * _LARGEST + 1) - _LARGEST
        groups = -(-self.size // _MOST_SUMMANDS)
        # With more ranks, only some of them send another number than 0 to the same sum.
        return numbers if groups == 1 else numbers * (position % groups == rank % groups)

    def expected_sum(self, start: int, stop: int) -> torch.Tensor:
        """Returns the elements from `start` to `stop` of the sum over all ranks."""
        total = self.rank_values(0, start, stop)
        for rank in range(1, self.size):
            total += self.rank_values(rank, start, stop)
        return total

    def expected_broadcast(self, start: int, stop: int) -> torch.Tensor:
        """Returns the elements from `start` to `stop` of the message of rank 0."""
        return self.rank_values(0, start, stop)

    def expected_gather(self, start: int, stop: int) -> torch.Tensor:
        """Returns the elements from `start` to `stop` of the messages of all ranks, in order of the ranks."""
        return self._concatenated(start, stop, self.count, 0)

    def expected_exchange(self, start: int, stop: int) -> torch.Tensor:
        """Returns the elements from `start` to `stop` of the parts that all ranks send to this rank, in order."""
        part = self.count // self.size
        return self._concatenated(start, stop, part, self.rank * part)

    def expected_scatter(self, start: int, stop: int) -> torch.Tensor:
        """Returns the elements from `start` to `stop` of this rank's chunk of the sum."""
        return self.expected_sum(self.rank * self.count + start, self.rank * self.count + stop)

    def check(self, result: torch.Tensor, expected: Callable[[int, int], torch.Tensor]) -> int:
        """Compares the result of this rank, and returns how many elements were compared.

        Args:
            result: the result, a tensor of one dimension.
            expected: returns the exact elements from `start` to `stop`, as int64.

        Raises:
            WrongResult: an element is wrong. The message names the first one.
        """
        compared = 0
        for start, stop in _compared(result.numel()):
            wrong = result[start:stop].to(torch.int64) != expected(start, stop)
            # The conversion cuts off a fraction, which is wrong too.
            wrong |= result[start:stop] != result[start:stop].round() if self.dtype.is_floating_point else False
            if bool(wrong.any()):
                first = int(wrong.nonzero()[0])
                raise WrongResult(
                    f"rank {self.rank} of {self.size}: element {start + first} of {result.numel()} is "
                    f"{result[start + first].item()}, expected {int(expected(start, stop)[first])} "
                    f"({int(wrong.sum())} of {stop - start} elements there are wrong)"
                )
            compared += stop - start
        return compared

    def _concatenated(self, start: int, stop: int, part: int, offset: int) -> torch.Tensor:
        """Returns elements of the parts of all ranks in order; each part has `part` elements from `offset` on."""
        pieces = []
        while start < stop:
            rank, at = divmod(start, part)
            length = min(part - at, stop - start)
            pieces.append(self.rank_values(rank, offset + at, offset + at + length))
            start += length
        return torch.cat(pieces)


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    """Yields start and stop of consecutive pieces of `count` elements."""
    for at in range(0, count, _AT_ONCE):
        yield at, min(at + _AT_ONCE, count)


def _compared(count: int) -> Iterator[tuple[int, int]]:
    """Yields start and stop of the compared stretches of a result of `count` elements."""
    if count <= _MOST_COMPARED:
        yield from _pieces(count)
        return
    length = _MOST_COMPARED // _STRETCHES
    for stretch in range(_STRETCHES):
        start = (count - length) * stretch // (_STRETCHES - 1)
        yield start, start + length


#: The first calls set up connections.
_WARM_UP_CALLS = 5
_WARM_UP_S = 1.0


def step_message(kernel_type: str, cells: Mapping[str, str], device: torch.device) -> RecordedCall:
    """Returns the collective of a step as a call of a kernel, which changes its only argument, of one dimension.

    Raises:
        Unsupported: it is another one than an all_reduce.
    """
    if kernel_type != ALL_REDUCE.kernel_type:
        raise Unsupported(f"{kernel_type} in a step: all_reduces alone are built: give tp, and ep 1 or as many as tp")
    message = Message(kernel_type, cells, device, distributed.get_rank(), distributed.get_world_size())
    recorded = RecordedCall()
    recorded(_all_reduce, message.input_tensor(), expected=_sum_of_ranks, mutates=[0])
    return recorded


def _all_reduce(message: torch.Tensor) -> None:
    distributed.all_reduce(message)


@pointwise
def _sum_of_ranks(message: torch.Tensor) -> torch.Tensor:
    own = [torch.empty_like(message) for _ in range(distributed.get_world_size())]
    distributed.all_gather(own, message.contiguous())
    return torch.stack(own).sum(dim=0)


class TimedCollective(RowReplay):
    """Measures the collective of one message when it is called, and leaves the result in `outcome`."""

    def __init__(
        self, message: Message, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group
    ) -> None:
        super().__init__(device)
        self._message = message
        self._group = group
        self._sampling = Sampling(device, instrument, settings, group)

    def expect_memory(self) -> None:
        """Raises OutOfMemory if the device cannot hold the message, before anything is allocated."""
        message = self._message
        # Input and output, each at most a chunk for every rank, and the buffers of the library.
        needed = 3 * message.size * message.count * message.dtype.itemsize
        if self._device.torch_device.type == "cpu":
            needed *= ranks_of_node()
        self._sampling.expect_memory(needed)

    def bounded_memory(self) -> AbstractContextManager[None]:
        """Returns a context without a bound: `expect_memory` knows all that a message needs."""
        return nullcontext()

    def __call__(
        self,
        call: Callable[[], object],
        result: torch.Tensor,
        expected: Callable[[int, int], torch.Tensor],
        restore: Callable[[], object] | None = None,
    ) -> None:
        """Measures `call`.

        Args:
            call: launches the collective; it may return before the device is done.
            result: the tensor of the result of this rank.
            expected: returns the elements from `start` to `stop` that the result must have.
            restore: restores the tensors that the collective overwrites.

        Raises:
            WrongResult: an element is wrong, before the first or after the last sample.
            ReplayError: a rank has no samples, or the ranks have different numbers of samples.
        """
        self._group.report_step("in its first call")
        call()
        self._device.synchronize()
        compared = self._message.check(result, expected)
        self._sampling.warm_up(call, most_calls=_WARM_UP_CALLS - 1, until=monotonic() + _WARM_UP_S)
        samples = self._sampling.take(call, restore)
        # Calls in quick succession must not disturb each other.
        self._message.check(result, expected)
        checked = Checked(compared, result.numel())
        self.outcome = self._sampling.outcome(samples, checked, noted=self._shared_cores())

    def _shared_cores(self) -> list[str]:
        """Returns a remark if the ranks of a CPU are more than its cores."""
        ranks, cores = ranks_of_node(), available_cores()
        crowded = self._device.torch_device.type == "cpu" and ranks > cores
        return [f"{ranks} ranks shared {cores} cores"] if crowded else []
