"""How a collective is timed: checked before and after, restored before each sample, the slowest rank's samples kept."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from opatlas.row.errors import OutOfMemory, ReplayError, WrongResult
from opatlas.row.status import Status
from opatlas.run.collectives.message import Message, TimedCollective
from opatlas.run.devices.cpu import CpuDevice
from opatlas.run.devices.device import DeviceSpec
from opatlas.run.group import RANK_SPREAD, Group, SynchronizedInstrument
from opatlas.run.instruments.attribution import NoSamples
from opatlas.run.instruments.instrument import MeasureSettings, Samples
from opatlas.run.instruments.timers import WallClock

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
    measurement = replay.outcome.measurement
    assert measurement is not None
    # Medians 5, 2 and 8; not the longest single sample.
    assert measurement.samples_us == (7.0, 8.0, 9.0)
    assert measurement.counters[RANK_SPREAD] == 6.0
    assert (measurement.checked_elements, measurement.total_elements, measurement.cache_state) == (16, 16, "warm")


def test_each_sample_begins_restored_and_synchronized() -> None:
    group = Three()
    measure(timed(group))
    assert group.barriers == 3


@pytest.mark.parametrize("broken_after", [0, 5])
def test_a_wrong_result_before_or_after_the_samples_fails(broken_after: int) -> None:
    replay = timed(Three())
    with pytest.raises(WrongResult, match=r"rank 0 .*element 3 "):
        measure(replay, broken_after)
    assert replay.outcome is None


def test_ranks_with_different_numbers_of_samples_are_not_compared() -> None:
    replay = timed(Three([(1.0, 2.0), (1.0, 2.0, 3.0)]), Fixed(Samples((1.0, 2.0, 3.0))))
    with pytest.raises(ReplayError):
        measure(replay)


def test_a_rank_without_a_profile_is_reported_and_keeps_no_rank_waiting() -> None:
    replay = timed(Three(), Fixed(Samples((), profiled=NoSamples("no file was written"))))
    measure(replay)
    assert replay.outcome is not None
    assert replay.outcome.status is Status.FAILED
    assert "no file was written" in replay.outcome.reason


class CountingDevice(CpuDevice):
    """A CPU with a given amount of memory, which counts its cache flushes."""

    memory_bytes = 1 << 40
    flushes = 0

    def available_bytes(self) -> int:
        return self.memory_bytes

    def flush_cache(self, touched: object) -> None:
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
