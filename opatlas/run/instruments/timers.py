"""Instruments that time whole calls, the host's clock and events of the device, and what waits for a throttled device.

Device events are recorded on the device's stream before and after a call. If the device has no other work, it waits
between the first event and the kernel until the host has launched the kernel. A sample includes this gap of some
microseconds, all kernels of the call, and the gaps between them. (On an H200 a kernel of 15.5 us reads 18.5 us.)
Profilers measure the kernel alone, but need more set-up.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter_ns
from typing import Any, Protocol

from opatlas.gc_pause import gc_paused
from opatlas.run.instruments.instrument import Instrument, MeasureSettings, Rule, Samples


class Timer:
    """Measures one call, or without `before_each` the mean of several consecutive calls.

    Attributes:
        name: name of the instrument.
        shortest_us: shortest sample of several calls.
        most_calls: the most calls of a sample.
    """

    name: str
    shortest_us: float
    most_calls: int

    def _elapsed_us(self, call: Callable[[], object], calls: int) -> float:
        """Returns the microseconds that some consecutive calls take."""
        raise NotImplementedError

    def _wait(self) -> None:
        """Waits until work before a sample has ended."""

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """Takes samples as `Instrument.sample` does."""
        durations_us: list[float] = []
        # A collection of garbage would lie in a sample.
        with gc_paused():
            calls = 1 if before_each else self._calls_per_sample(call)
            while not rule.enough(durations_us):
                if before_each:
                    before_each()
                    self._wait()
                durations_us.append(self._elapsed_us(call, calls) / calls)
        return Samples(tuple(durations_us), device_kernels=None, calls_per_sample=calls)

    def _calls_per_sample(self, call: Callable[[], object]) -> int:
        """Returns the number of calls that together take at least `shortest_us`."""
        calls = 1
        while (elapsed_us := self._elapsed_us(call, calls)) < self.shortest_us and calls < self.most_calls:
            wanted = calls * 2 if elapsed_us <= 0 else math.ceil(calls * self.shortest_us / elapsed_us)
            calls = min(self.most_calls, wanted)
        return calls


class WallClock(Timer):
    """Measures calls with `time.perf_counter_ns`.

    On a CPU the duration includes torch's dispatch, like the duration that a caller sees.
    """

    name = "wall-clock"
    #: A reading of the clock takes about 50 ns, less than 0.1 % of this duration.
    shortest_us = 50.0
    most_calls = 10_000

    def _elapsed_us(self, call: Callable[[], object], calls: int) -> float:
        start = perf_counter_ns()
        for _ in range(calls):
            call()
        return (perf_counter_ns() - start) / 1000


def open_wall_clock(kind: str, settings: MeasureSettings) -> WallClock:
    """Opens the wall clock."""
    return WallClock()


class Event(Protocol):
    """The common interface of torch.npu.Event and torch.cuda.Event, which are recorded on the current stream."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Event, /) -> float:
        """Returns the milliseconds from this event to a later one."""
        ...


class DeviceEvents(Timer):
    """Measures with two events around each call, or around several. Kernels outside the current stream do not count."""

    #: Device clocks tick in steps of up to a microsecond, 0.1 % of this duration. Only the first of several consecutive
    #: calls waits for the host, if kernels take longer than their launch.
    shortest_us = 1_000.0
    most_calls = 1_000

    def __init__(self, name: str, event: Callable[[], Event], synchronize: Callable[[], None]) -> None:
        """
        Args:
            name: name of the instrument.
            event: creates an event that measures time.
            synchronize: waits until all launched work has ended.
        """
        self.name = name
        self._start, self._stop = event(), event()
        self._synchronize = synchronize

    def _wait(self) -> None:
        self._synchronize()

    def _elapsed_us(self, call: Callable[[], object], calls: int) -> float:
        self._start.record()
        for _ in range(calls):
            call()
        self._stop.record()
        # Events complete in the stream's order: after the second event all work between the events has ended.
        self._stop.synchronize()
        return self._start.elapsed_time(self._stop) * 1000


def open_device_events(kind: str, settings: MeasureSettings) -> DeviceEvents:
    """Opens events on the device of this process."""
    import torch

    module: Any = torch.get_device_module(kind)
    return DeviceEvents(f"{kind}-events", lambda: module.Event(enable_timing=True), module.synchronize)


#: Pause between two questions whether the throttling has ended, in seconds, and the most pauses of a row. A power cap
#: from an earlier row ends within tenths of a second. A longer cap comes from the row itself: large matrix products
#: reach the power limit, and heat stays for hours.
_PAUSE_S = 0.005
_MOST_PAUSES = 100
#: Samples that take longer together throttle the device themselves. On two H200s 84 of 87 of these rows throttled it
#: again after a wait; of 108 rows whose samples took less than 100 ms, 3.
_OWN_THROTTLING_US = 150_000


class UnthrottledInstrument:
    """Wraps an instrument: waits until the device is not throttled, and repeats samples of a throttled device once.

    Samples of a row that throttles the device itself are repeated at once, so that all are samples of the same clocks.

    Attributes:
        name: name of the wrapped instrument.
    """

    def __init__(
        self,
        instrument: Instrument,
        throttles: Callable[[], tuple[str, ...]],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        Args:
            instrument: the wrapped instrument.
            throttles: returns why the clocks are lowered now; () for normal clocks.
            sleep: waits some seconds; replaced in tests.
        """
        self.name = instrument.name
        self._instrument = instrument
        self._throttles = throttles
        self._sleep = sleep

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """Takes samples as `Instrument.sample` does, without samples of a throttled device.

        The notes count discarded samples; `throttled` refers to the kept samples.
        """
        pauses = [_PAUSE_S] * _MOST_PAUSES
        dropped, reasons = 0, self._wait(pauses)
        samples = self._instrument.sample(call, before_each, rule)
        reasons = self._throttles() or reasons
        again = rule.again() if reasons and pauses else None
        if again is not None:
            dropped = len(samples.durations_us)
            # The throttling of a short row comes from an earlier row. A long row is measured in its own steady state.
            reasons = self._wait(pauses) if sum(samples.durations_us) < _OWN_THROTTLING_US else ()
            samples = self._instrument.sample(call, before_each, again)
            reasons = self._throttles() or reasons
        return replace(samples, notes=(*samples.notes, *_notes(dropped)), throttled=_throttled(reasons))

    def _wait(self, pauses: list[float]) -> tuple[str, ...]:
        """Waits until the device is not throttled, or no pause is left. Returns why it is still throttled."""
        while (reasons := self._throttles()) and pauses:
            self._sleep(pauses.pop())
        return reasons


def _notes(dropped: int) -> list[str]:
    were = "sample was" if dropped == 1 else "samples were"
    return [f"{dropped} {were} dropped: the device was throttled"] if dropped else []


def _throttled(reasons: tuple[str, ...]) -> str:
    return f"the device was throttled ({', '.join(reasons)})" if reasons else ""
