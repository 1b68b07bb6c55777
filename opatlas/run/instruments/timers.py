"""Instruments that time whole calls, the host's clock and events of the device; and filters of disturbed samples.

Device events are recorded on the device's stream before and after a call. If the device has no other work, it waits
between the first event and the kernel until the host has launched the kernel. A sample includes this gap of some
microseconds, all kernels of the call, and the gaps between them. (On an H200 a kernel of 15.5 us reads 18.5 us.)
Profilers measure the kernel alone, but need more set-up.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter_ns
from types import FrameType
from typing import Any, Protocol

from opatlas.gc_pause import gc_paused
from opatlas.row.errors import ReplayError
from opatlas.run.instruments.instrument import Instrument, MeasureSettings, Rule, Samples

#: Shortest sample of the wall clock. A reading of the clock takes about 50 ns, less than 0.1 % of this duration.
_SHORTEST_SAMPLE_NS = 50_000
_MOST_CALLS_PER_SAMPLE = 10_000


class WallClock:
    """Measures calls with `time.perf_counter_ns` while garbage collection is paused.

    On a CPU the duration includes torch's dispatch, like the duration that a caller sees.
    """

    name = "wall-clock"

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        calls = 1 if before_each else _calls_per_sample(call)
        durations_us: list[float] = []
        sample = StopFilter(rule)
        with gc_paused():
            while not rule.enough(durations_us):
                if before_each:
                    before_each()
                sample.begin()
                start = perf_counter_ns()
                for _ in range(calls):
                    call()
                stop = perf_counter_ns()
                if not sample.is_disturbed():
                    durations_us.append((stop - start) / calls / 1000)
        return Samples(tuple(durations_us), device_kernels=None, calls_per_sample=calls, notes=sample.notes)


def _calls_per_sample(call: Callable[[], object]) -> int:
    """Returns the number of calls that together take at least `_SHORTEST_SAMPLE_NS`."""
    calls = 1
    while True:
        before = stops()
        start = perf_counter_ns()
        for _ in range(calls):
            call()
        elapsed = perf_counter_ns() - start
        if stops() != before:
            continue
        if elapsed >= _SHORTEST_SAMPLE_NS or calls >= _MOST_CALLS_PER_SAMPLE:
            return calls
        calls = min(_MOST_CALLS_PER_SAMPLE, calls * 2 if elapsed <= 0 else -(-calls * _SHORTEST_SAMPLE_NS // elapsed))


def open_wall_clock(kind: str, settings: MeasureSettings) -> WallClock:
    """Opens the wall clock."""
    return WallClock()


#: Shortest sample between events. Device clocks tick in steps of up to a microsecond, 0.1 % of this duration. Only the
#: first of several consecutive calls waits for the host, if kernels take longer than their launch.
_SHORTEST_EVENTS_US = 1_000.0
_MOST_CALLS_BETWEEN_EVENTS = 1_000


class Event(Protocol):
    """The common interface of torch.npu.Event and torch.cuda.Event, which are recorded on the current stream."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Event, /) -> float:
        """Returns the milliseconds from this event to a later one."""
        ...


class DeviceEvents:
    """Measures with two events around each call, or around several consecutive calls without `before_each`."""

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

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """Takes samples as `Instrument.sample` does. Kernels outside the current stream are not measured."""
        with gc_paused():
            calls = 1 if before_each else self._calls_per_sample(call)
            durations_us: list[float] = []
            sample = StopFilter(rule)
            while not rule.enough(durations_us):
                if before_each:
                    before_each()
                    self._synchronize()
                # A stop of the host before the launch lies between the events.
                sample.begin()
                duration_us = self._duration_us(call, calls) / calls
                if not sample.is_disturbed():
                    durations_us.append(duration_us)
        return Samples(tuple(durations_us), device_kernels=None, calls_per_sample=calls, notes=sample.notes)

    def _duration_us(self, call: Callable[[], object], calls: int) -> float:
        self._start.record()
        for _ in range(calls):
            call()
        self._stop.record()
        # Events complete in the stream's order: after the second event all work between the events has ended.
        self._stop.synchronize()
        return self._start.elapsed_time(self._stop) * 1000

    def _calls_per_sample(self, call: Callable[[], object]) -> int:
        """Returns the number of calls that together take at least `_SHORTEST_EVENTS_US`."""
        calls = 1
        while True:
            before = stops()
            elapsed_us = self._duration_us(call, calls)
            if stops() != before:
                continue
            if elapsed_us >= _SHORTEST_EVENTS_US or calls >= _MOST_CALLS_BETWEEN_EVENTS:
                return calls
            wanted = calls * 2 if elapsed_us <= 0 else int(calls * _SHORTEST_EVENTS_US / elapsed_us) + 1
            calls = min(_MOST_CALLS_BETWEEN_EVENTS, wanted)


def open_device_events(kind: str, settings: MeasureSettings) -> DeviceEvents:
    """Opens events on the device of this process."""
    import torch

    module: Any = torch.get_device_module(kind)
    return DeviceEvents(f"{kind}-events", lambda: module.Event(enable_timing=True), module.synchronize)


#: Maximum number of samples of a row that are discarded because the process was stopped.
_MOST_DROPPED = 10

_count = 0


def count_stops() -> None:
    """Starts the count of `stops`. Does nothing outside the main thread, because only that thread handles signals."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGCONT) is _on_continue:
        return
    signal.signal(signal.SIGCONT, _on_continue)
    # Waits of libraries in C are not interrupted.
    signal.siginterrupt(signal.SIGCONT, False)


def stops() -> int:
    """Returns how often this process was stopped and continued (SIGSTOP, SIGCONT) since `count_stops`."""
    return _count


def _on_continue(number: int, frame: FrameType | None) -> None:
    global _count
    _count += 1


class StopFilter:
    """Discards the samples of a row during which the process was stopped."""

    def __init__(self, rule: Rule) -> None:
        """`rule` shares between the ranks of a group whether a rank was stopped."""
        self._rule = rule
        self._before = 0
        self._dropped = 0

    def begin(self) -> None:
        """Marks the beginning of a sample."""
        self._before = stops()

    def is_disturbed(self) -> bool:
        """Returns whether the process was stopped during the last sample, which must be repeated then.

        Raises:
            ReplayError: the process was stopped too often.
        """
        if not self._rule.any_rank(stops() != self._before):
            return False
        self._dropped += 1
        if self._dropped > _MOST_DROPPED:
            raise ReplayError(
                f"the process was stopped (SIGSTOP, SIGCONT) during {self._dropped} samples: run the row again "
                "without stopping the process"
            )
        return True

    @property
    def notes(self) -> tuple[str, ...]:
        """Returns remarks for readers of the durations."""
        dropped = f"{self._dropped} sample{'s were' if self._dropped > 1 else ' was'} dropped"
        return (f"{dropped}: the process was stopped meanwhile",) if self._dropped else ()


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
