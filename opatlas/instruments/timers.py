"""Instruments that time whole calls: the wall clock of the host, and events of a device."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

from opatlas.gc_pause import gc_paused
from opatlas.instruments.instrument import MeasureSettings, Samples
from opatlas.instruments.sample_filters import StopFilter, stops
from opatlas.instruments.stop_rule import Rule

#: Reading the clock takes some 50 ns, so a sample of this length is off by less than 0.1 %.
_SHORTEST_SAMPLE_NS = 50_000
_MOST_CALLS_PER_SAMPLE = 10_000


class WallClock:
    """`time.perf_counter_ns` around the call, with the garbage collector off.

    On a CPU the duration includes what torch does to dispatch the call: that is what a caller pays.
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
                if not sample.is_spoilt():
                    durations_us.append((stop - start) / calls / 1000)
        return Samples(tuple(durations_us), device_kernels=None, calls_per_sample=calls, notes=sample.notes)


def _calls_per_sample(call: Callable[[], object]) -> int:
    """Calls that together last long enough for the clock."""
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


def open_wall_clock(settings: MeasureSettings) -> WallClock:
    return WallClock()


#: Of several calls in a row only the first waits for the host, where kernels take longer than their launch; and
#: clocks of devices tick in steps of up to a microsecond, 0.1 % of this.
_SHORTEST_EVENTS_US = 1_000.0
_MOST_CALLS_BETWEEN_EVENTS = 1_000


class Event(Protocol):
    """What torch.npu.Event and torch.cuda.Event have in common; recorded on the current stream."""

    def record(self) -> None: ...

    def synchronize(self) -> None: ...

    def elapsed_time(self, end_event: Event, /) -> float:
        """Milliseconds from this event to a later one."""
        ...


class DeviceEvents:
    """An instrument: two events around each call, or around several in a row where nothing is between them."""

    def __init__(self, name: str, event: Callable[[], Event], synchronize: Callable[[], None]) -> None:
        """
        Args:
            event: makes one that measures time.
            synchronize: waits for everything that was launched.
        """
        self.name = name
        self._start, self._stop = event(), event()
        self._synchronize = synchronize

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """As in `Instrument`; kernels that a call launches on other streams than the current one are not seen."""
        with gc_paused():
            calls = 1 if before_each else self._calls_per_sample(call)
            durations_us: list[float] = []
            sample = StopFilter(rule)
            while not rule.enough(durations_us):
                if before_each:
                    before_each()
                    self._synchronize()
                # A device that waits for a stopped host to launch the call has the pause between its events.
                sample.begin()
                duration_us = self._duration_us(call, calls) / calls
                if not sample.is_spoilt():
                    durations_us.append(duration_us)
        return Samples(tuple(durations_us), device_kernels=None, calls_per_sample=calls, notes=sample.notes)

    def _duration_us(self, call: Callable[[], object], calls: int) -> float:
        self._start.record()
        for _ in range(calls):
            call()
        self._stop.record()
        # Events are reached in the stream's order: when the second one is, everything between them is done.
        self._stop.synchronize()
        return self._start.elapsed_time(self._stop) * 1000

    def _calls_per_sample(self, call: Callable[[], object]) -> int:
        """Calls that together last long enough."""
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


def open_npu_events(settings: MeasureSettings) -> DeviceEvents:
    """On the NPU that this process has opened."""
    import torch

    npu: Any = torch.get_device_module("npu")
    return DeviceEvents("npu-events", lambda: npu.Event(enable_timing=True), npu.synchronize)


def open_cuda_events(settings: MeasureSettings) -> DeviceEvents:
    """On the GPU that this process has opened."""
    import torch

    cuda: Any = torch.cuda
    return DeviceEvents("cuda-events", lambda: cuda.Event(enable_timing=True), cuda.synchronize)
