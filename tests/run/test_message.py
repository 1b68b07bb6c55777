"""The results of every rank of a collective are checked, and its samples are those of the slowest rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from hypothesis import given, settings, strategies as st

from opatlas.row import communication
from opatlas.row.errors import InvalidRow, OutOfMemory, WrongResult
from opatlas.row.record import Measurement
from opatlas.row.status import Status
from opatlas.run import message as module
from opatlas.run.devices.cpu import CpuDevice
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.group import RANK_SPREAD, Group, SynchronizedInstrument
from opatlas.run.instruments.instrument import MeasureSettings, Samples, StopRule, WallClock
from opatlas.run.job import RowOutcome
from opatlas.run.message import Message, TimedCollective
from opatlas.run.process.device_main import combine_ranks

DTYPES = ["DT_BF16", "DT_FLOAT16", "DT_FLOAT", "DT_INT8"]


def ranks_of(collective: communication.Collective, elements: int, size: int, dtype: str = "DT_BF16") -> list[Message]:
    element_bytes = {"DT_FLOAT": 4, "DT_INT8": 1}.get(dtype, 2)
    message_bytes = collective.message_bytes(elements * element_bytes, size, element_bytes)
    cells = {"message_bytes": str(message_bytes), "num_devices": str(size), "dtype": dtype, "topology_tier": "1"}
    return [Message(collective.kernel_type, cells, torch.device("cpu"), rank, size) for rank in range(size)]


def done(collective: communication.Collective, ranks: list[Message]) -> list[tuple[torch.Tensor, Callable]]:
    """The right result of the collective on each rank, in its own dtype, and the expected one."""
    size = len(ranks)
    if collective is communication.ALL_REDUCE:
        total = sum((rank.input_tensor() for rank in ranks[1:]), ranks[0].input_tensor())
        return [(total.clone(), rank.expected_sum) for rank in ranks]
    if collective is communication.ALL_GATHER:
        together = torch.cat([rank.input_tensor() for rank in ranks])
        return [(together.clone(), rank.expected_gather) for rank in ranks]
    if collective is communication.REDUCE_SCATTER:
        total = sum((rank.input_tensor(size) for rank in ranks[1:]), ranks[0].input_tensor(size))
        return [(chunk.clone(), rank.expected_scatter) for rank, chunk in zip(ranks, total.chunk(size), strict=True)]
    if collective is communication.BROADCAST:
        return [(ranks[0].input_tensor(), rank.expected_broadcast) for rank in ranks]
    parts = [rank.input_tensor().chunk(size) for rank in ranks]
    return [(torch.cat([parts[r][me.rank] for r in range(size)]), me.expected_exchange) for me in ranks]


@settings(max_examples=60)
@given(st.sampled_from(communication.COLLECTIVES), st.integers(1, 300), st.integers(2, 9), st.sampled_from(DTYPES))
def test_a_right_result_passes_on_every_rank(
    collective: communication.Collective, elements: int, size: int, dtype: str
) -> None:
    ranks = ranks_of(collective, elements, size, dtype)
    for rank, (result, expected) in zip(ranks, done(collective, ranks), strict=True):
        assert rank.check(result, expected) == result.numel()


@settings(max_examples=60)
@given(st.sampled_from(communication.COLLECTIVES), st.integers(64, 300), st.integers(2, 9), st.data())
def test_a_result_of_other_ranks_or_places_does_not(
    collective: communication.Collective, elements: int, size: int, data: st.DataObject
) -> None:
    ranks = ranks_of(collective, elements, size)
    result, expected = done(collective, ranks)[0]
    shift = data.draw(st.integers(1, result.numel() - 1))
    wrong = {
        "shifted": result.roll(shift),
        "not written": torch.full_like(result, 99),
        "half of it not written": torch.cat(
            [result[: len(result) // 2], ranks[0].output_tensor()[: -(-len(result) // 2)]]
        )
        if collective is not communication.ALL_GATHER
        else torch.full_like(result, 99),
        "a fraction off": result + 0.5,
    }
    if collective in (communication.ALL_REDUCE, communication.REDUCE_SCATTER):
        own = ranks[0].rank_values(0, 0, result.numel()).to(result.dtype)
        wrong |= {"one rank left out": result - own, "one rank twice": result + own}
    if collective is communication.ALL_GATHER:
        wrong["two ranks swapped"] = torch.cat(
            [ranks[1].input_tensor(), ranks[0].input_tensor(), *(r.input_tensor() for r in ranks[2:])]
        )
    for tensor in wrong.values():
        with pytest.raises(WrongResult, match=f"rank 0 of {size}"):
            ranks[0].check(tensor, expected)


def test_of_a_large_result_both_ends_and_places_between_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_COMPARED", 640)
    rank = ranks_of(communication.ALL_REDUCE, 100_000, 2)[0]
    result, expected = done(communication.ALL_REDUCE, ranks_of(communication.ALL_REDUCE, 100_000, 2))[0]
    assert rank.check(result, expected) == 640
    for place in (0, 99_999):
        wrong = result.clone()
        wrong[place] += 1
        with pytest.raises(WrongResult, match=f"element {place} of 100000"):
            rank.check(wrong, expected)
    wrong = result.clone()
    wrong[40_000:60_000] += 1
    with pytest.raises(WrongResult):
        rank.check(wrong, expected)


@pytest.mark.parametrize(
    ("kernel_type", "cells", "words"),
    [
        ("hcom_batchSendRecv_", {}, "hcom_batchSendRecv_"),
        ("hcom_allReduce_", {"dtype": "DT_FP5"}, "'dtype' = 'DT_FP5'"),
        ("hcom_allReduce_", {"num_devices": "4"}, "'num_devices' = '4'.* 2 ranks"),
        ("hcom_allReduce_", {"message_bytes": "3"}, "'message_bytes' = 3 .*BF16"),
        ("hcom_alltoallv_", {"message_bytes": "6"}, "'message_bytes' = 6 .*2 devices"),
        ("hcom_allReduce_", {"message_bytes": "1 KiB"}, "'message_bytes' = '1 KiB'"),
        ("hcom_allReduce_", {"message_bytes": "0"}, "'message_bytes' = '0'"),
    ],
)
def test_cells_without_a_message(kernel_type: str, cells: dict[str, str], words: str) -> None:
    row = {"message_bytes": "8", "num_devices": "2", "dtype": "DT_BF16", "topology_tier": "1"} | cells
    with pytest.raises(InvalidRow, match=words):
        Message(kernel_type, row, torch.device("cpu"), 0, 2)


CELLS = {"message_bytes": "64", "num_devices": "3", "dtype": "DT_FLOAT", "topology_tier": "1"}


class Three(Group):
    """This rank of three, which gets the samples of the others from the test."""

    def __init__(self, others: Sequence[Sequence[float]] = ((1.0, 2.0, 3.0), (7.0, 8.0, 9.0))) -> None:
        super().__init__(0, 3)
        self.others = others
        self.barriers = 0

    def first_rank_decides(self, value: bool) -> bool:
        return value

    def device_barrier(self) -> None:
        self.barriers += 1

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        if list(values) == [False]:
            # Whether a rank had a pause: none had.
            return [[0.0]] * self.size
        if len(values) == 1:
            return [list(values), *([float(len(other))] for other in self.others)]
        return [list(values), *map(list, self.others)]


class Fixed:
    """An instrument whose samples are known."""

    name = "fixed"

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def sample(self, call, before_each, rule) -> Samples:
        before_each()
        call()
        return self._samples


MESSAGE = Message("hcom_allReduce_", CELLS, torch.device("cpu"), 0, 3)


def timed(
    group: Group, instrument: object = None, cache: str = "warm", device: CpuDevice | None = None
) -> TimedCollective:
    settings = MeasureSettings(repeat_count=3, cache=cache, threads=1)
    device = device or CpuDevice(DeviceSpec("cpu"), settings)
    return TimedCollective(MESSAGE, device, instrument or SynchronizedInstrument(WallClock(), group), settings, group)


def measure(replay: TimedCollective, broken_after: int = 1000) -> None:
    """Measures a stand-in of all_reduce, whose element 3 is wrong after `broken_after` calls."""
    given = MESSAGE.input_tensor()
    result = given.clone()
    calls = [0]

    def call() -> None:
        calls[0] += 1
        # In place, as the library does.
        result.add_(MESSAGE.expected_sum(0, MESSAGE.count) - MESSAGE.rank_values(0, 0, MESSAGE.count))
        if calls[0] > broken_after:
            result[3] += 1

    replay(call, result, MESSAGE.expected_sum, lambda: result.copy_(given))


def test_the_samples_of_the_slowest_rank_are_the_samples_of_the_row() -> None:
    replay = timed(Three(), Fixed(Samples((4.0, 5.0, 60.0), device_kernels=1)))
    measure(replay)
    assert replay.outcome is not None
    measurement = combine_ranks("hcom_allReduce_", replay.outcome, Three()).measurement
    assert measurement is not None
    # Medians 5, 2 and 8; not the longest single sample.
    assert measurement.samples_us == (7.0, 8.0, 9.0)
    assert measurement.counters[RANK_SPREAD] == 6.0
    assert (measurement.checked_elements, measurement.total_elements, measurement.cache_state) == (16, 16, "warm")


@pytest.mark.parametrize("broken_after", [0, 5])
def test_a_wrong_result_before_or_after_the_samples_fails(broken_after: int) -> None:
    replay = timed(Three())
    with pytest.raises(WrongResult, match=r"rank 0 .*element 3 "):
        measure(replay, broken_after)
    assert replay.outcome is None


class CountingDevice(CpuDevice):
    """A CPU with a given amount of memory, which counts its cache flushes."""

    memory_bytes = 1 << 40
    flushes = 0

    def available_bytes(self) -> int:
        return self.memory_bytes

    def flush_cache(self) -> None:
        self.flushes += 1


def test_a_message_that_does_not_fit_is_refused() -> None:
    device = CountingDevice(DeviceSpec("cpu"), MeasureSettings(threads=1))
    replay = timed(Three(), device=device)
    # Input, output and buffers, each a chunk of 64 bytes for three ranks.
    device.memory_bytes = 3 * 3 * 64
    replay.expect_memory()
    device.memory_bytes -= 1
    with pytest.raises(OutOfMemory):
        replay.expect_memory()


def test_cold_flushes_before_each_sample() -> None:
    device = CountingDevice(DeviceSpec("cpu"), MeasureSettings(threads=1))
    measure(timed(Three(), cache="cold", device=device))
    assert device.flushes == 3


class Recorded(Group):
    """A rank whose group decides otherwise than its own rule, and that notes its steps."""

    def __init__(self, decisions: list[bool]) -> None:
        self.decisions = decisions
        self.done: list[str] = []
        #: The values of the other rank, the last one first; 0 from then on.
        self.of_the_other: list[float] = []
        super().__init__(0, 2, _report=lambda step, event: self.done.append(f"{step} {event}"))

    def first_rank_decides(self, value: bool) -> bool:
        return self.decisions.pop(0)

    def barrier(self) -> None:
        self.done.append("together")

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        return [list(values), [self.of_the_other.pop() if self.of_the_other else 0.0]]


@pytest.mark.parametrize("before_each", [None, lambda: None])
def test_the_group_decides_and_a_sample_is_one_call(before_each: Callable[[], None] | None) -> None:
    group = Recorded([False, False, False, True])
    rule = StopRule(repeat_count=1, time_limit_s=60)
    samples = SynchronizedInstrument(WallClock(), group).sample(lambda: group.done.append("call"), before_each, rule)
    assert (len(samples.durations_us), samples.calls_per_sample) == (3, 1)
    assert [event.split()[-1] for event in group.done[1:]] == ["call", "together", "call"] * 3


class SlowInTurns(Group):
    """A second rank, each of whose samples is slow where the first one's is not."""

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        other = [12.0, 10.0, 10.0, 10.0] if len(values) > 1 else list(values)
        return [list(values), other]


def test_a_sample_of_a_group_is_the_longest_of_its_ranks() -> None:
    own = RowOutcome(Status.MEASURED, measurement=Measurement((10.0, 10.0, 12.0, 10.0), "wall-clock", "cold"))
    outcome = combine_ranks("Sum", own, SlowInTurns(0, 2))
    assert outcome.status is Status.MEASURED
    assert outcome.measurement is not None
    assert outcome.measurement.samples_us == (12.0, 10.0, 12.0, 10.0)
