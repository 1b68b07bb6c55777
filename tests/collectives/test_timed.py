"""How a collective is timed: checked before and after, restored before each sample, the slowest rank's samples kept."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from opatlas.collectives.message import Message
from opatlas.collectives.timed import TimedCollective
from opatlas.devices.cpu import CpuDevice
from opatlas.devices.device import DeviceSpec
from opatlas.engine.group import RANK_SPREAD, Group, SynchronizedInstrument
from opatlas.instruments.attribution import NoSamples
from opatlas.instruments.instrument import MeasureSettings, Samples
from opatlas.instruments.timers import WallClock
from opatlas.model.errors import OutOfMemory, ReplayError, WrongResult
from opatlas.model.schema import Status

CELLS = {"message_bytes": "64", "num_devices": "3", "dtype": "DT_FLOAT", "topology_tier": "1"}


class Three(Group):
    """This rank of three, which hears of the others what the test says they measured."""

    def __init__(self, others: Sequence[Sequence[float]] = ((1.0, 2.0, 3.0), (7.0, 8.0, 9.0))) -> None:
        super().__init__(0, 3)
        self.others = others
        self.lined_up = 0

    def first_rank_decides(self, value: bool) -> bool:
        return value

    def device_barrier(self) -> None:
        self.lined_up += 1

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


def timed(group: Group, instrument: object = None, cache: str = "warm") -> TimedCollective:
    settings = MeasureSettings(repeat_count=3, cache=cache, threads=1)
    device = CpuDevice(DeviceSpec("cpu"), settings)
    message = Message("hcom_allReduce_", CELLS, torch.device("cpu"), 0, 3)
    return TimedCollective(message, device, instrument or SynchronizedInstrument(WallClock(), group), settings, group)


def summing(replay: TimedCollective, broken_after: int = 1000):
    """A stand-in of all_reduce, right until it has been called so often; its tensor, and what restores that."""
    message = replay._message
    given = message.given()
    result = given.clone()
    calls = [0]

    def call() -> None:
        calls[0] += 1
        # As the library does: out of what is there now.
        result.add_(message.summed(0, message.count) - message.values(0, 0, message.count))
        if calls[0] > broken_after:
            result[3] += 1

    return call, result, lambda: result.copy_(given)


def test_the_slowest_ranks_samples_are_the_rows() -> None:
    replay = timed(Three(), Fixed(Samples((4.0, 5.0, 60.0), device_kernels=1)))
    call, result, restore = summing(replay)
    replay(call, result, replay._message.summed, restore)
    assert replay.outcome is not None
    measurement = replay.outcome.measurement
    assert measurement is not None
    # Medians 5, 2 and 8; not the longest single sample.
    assert measurement.samples_us == (7.0, 8.0, 9.0)
    assert measurement.counters[RANK_SPREAD] == 6.0
    assert (measurement.checked_elements, measurement.total_elements, measurement.cache_state) == (16, 16, "warm")


def test_each_sample_begins_restored_and_in_line() -> None:
    group = Three()
    replay = timed(group)
    call, result, restore = summing(replay)
    replay(call, result, replay._message.summed, restore)
    assert group.lined_up == 3


@pytest.mark.parametrize("broken_after", [0, 5])
def test_what_is_wrong_before_or_after_the_samples_fails(broken_after: int) -> None:
    replay = timed(Three())
    call, result, restore = summing(replay, broken_after)
    with pytest.raises(WrongResult, match=r"rank 0 of 3 holds .* as element 3 of 16"):
        replay(call, result, replay._message.summed, restore)
    assert replay.outcome is None


def test_ranks_with_other_numbers_of_samples_are_not_compared() -> None:
    replay = timed(Three([(1.0, 2.0), (1.0, 2.0, 3.0)]), Fixed(Samples((1.0, 2.0, 3.0))))
    call, result, restore = summing(replay)
    with pytest.raises(ReplayError, match="different numbers of samples"):
        replay(call, result, replay._message.summed, restore)


def test_a_rank_without_a_profile_says_so_and_keeps_nobody_waiting() -> None:
    replay = timed(Three(), Fixed(Samples((), profiled=NoSamples("the profiler wrote no file"))))
    call, result, restore = summing(replay)
    replay(call, result, replay._message.summed, restore)
    assert replay.outcome is not None
    assert replay.outcome.status is Status.FAILED
    assert "the profiler wrote no file" in replay.outcome.reason


def test_a_message_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = timed(Three())
    monkeypatch.setattr(replay._device, "available_bytes", lambda: 3 * 3 * 64 - 1)
    with pytest.raises(OutOfMemory, match="are available on the device"):
        replay.expect_memory()
    monkeypatch.setattr(replay._device, "available_bytes", lambda: 3 * 3 * 64)
    replay.expect_memory()


def test_cold_flushes_before_each_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    replay = timed(Three(), cache="cold")
    flushed = []
    monkeypatch.setattr(replay._device, "flush_cache", lambda touched: flushed.append(1))
    call, result, restore = summing(replay)
    replay(call, result, replay._message.summed, restore)
    assert len(flushed) == 3
