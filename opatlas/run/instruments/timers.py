"""Implements instruments that time whole calls: the host's clock, and events of the device.

Device events are recorded on the device's stream before and after a call. If the device has no other work, it waits
between the first event and the kernel until the host has launched the kernel. A sample includes this gap of some
microseconds, all kernels of the call, and the gaps between them. (On an H200 a kernel of 15.5 us reads 18.5 us.)
Profilers measure the kernel alone, but need more set-up.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

from opatlas.gc_pause import gc_paused
from opatlas.run.instruments.instrument import MeasureSettings, Samples
from opatlas.run.instruments.sample_filters import StopFilter, stops
from opatlas.run.instruments.stop_rule import Rule

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
