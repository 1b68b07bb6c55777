"""What instruments are: settings, samples, the rule that ends the sampling of a row, and those that time whole calls.

Sampling stops when the standard error of the mean is small, or, as in nvbench, when the relative standard deviation has
settled, because more samples do not reduce the noise of a noisy machine. At least ten samples are taken, unless a time
limit ends first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic, perf_counter_ns
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from opatlas.progress import gc_paused
from opatlas.row.quality import LEAST_FOR_NOISE
from opatlas.run.instruments.attribution import BEGIN_MARK, END_MARK, PendingSamples, row_mark

if TYPE_CHECKING:
    # Not imported at run time, because pytest's process does not import torch.
    import torch


@dataclass(frozen=True)
class MeasureSettings:
    """The settings of a measurement.

    Attributes:
        repeat_count: number of samples; None: the stop rule decides; 0: a row is called once and checked.
        cache: "cold" (caches are flushed before each sample) or "warm".
        time_limit_s: wall time after which the stop rule ends the sampling of a row.
        threads: number of CPU threads of torch; None: one for each core that the process may use.
        instrument: name of the instrument in `DeviceKind.instruments`; None: the best one that works on the device.
        aic_metrics: group of hardware counters that msprof records.
    """

    repeat_count: int | None = None
    cache: str = "cold"
    time_limit_s: float = 5.0
    threads: int | None = None
    instrument: str | None = None
    aic_metrics: str = "PipeUtilization"

    @property
    def measures(self) -> bool:
        """Whether samples are taken."""
        return self.repeat_count != 0


Function = TypeVar("Function", bound=Callable[..., Any])


def callback(function: Function) -> Function:
    """Marks a function that a library of the device calls, also on threads of its own."""
    vars(function)["is_callback"] = True
    return function


#: Measures many rows in one profiling session (opatlas/run/msprof_sessions.py), and records hardware counters.
MSPROF = "msprof"


@dataclass(frozen=True)
class Samples:
    """The samples of a call.

    Attributes:
        durations_us: durations in microseconds, in order of time; () if a profile has them.
        device_kernels: number of device kernels of one call; None if the instrument does not count them.
        kernel_names: readable names of the device kernels of one call, in the order of their launches; () if unknown.
        kernels_us: mean duration of each of these kernels in microseconds; () if unknown.
        spans_us: time from the start of the first to the end of the last device kernel of each call, in microseconds,
            in order of time; () if unknown.
        calls_per_sample: number of calls that one sample averages.
        pending: where a profile has the samples; None if the instrument needs no profile.
        notes: remarks for readers of the durations.
        throttled: why the device lowered its clocks during the samples; "" for normal clocks.
    """

    durations_us: tuple[float, ...]
    device_kernels: int | None = None
    kernel_names: tuple[str, ...] = ()
    kernels_us: tuple[float, ...] = ()
    spans_us: tuple[float, ...] = ()
    calls_per_sample: int = 1
    pending: PendingSamples | None = None
    notes: tuple[str, ...] = ()
    throttled: str = ""


class Instrument(Protocol):
    """Measures the duration of any call.

    Attributes:
        name: name of the instrument in `DeviceKind.instruments`.
    """

    name: str

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """Takes samples of `call` until `rule` ends the sampling.

        Args:
            call: launches the kernel; may return before the kernel has ended on the device.
            before_each: prepares each sample (flushes caches, restores inputs), is not measured, and may return before
                its work has ended on the device. None: a sample may average several consecutive calls.
            rule: a new rule for this row.
        """
        ...


#: Fewest samples of a row whose time limit does not end first.
LEAST_SAMPLES = 10
#: A mean with a smaller relative standard error is known well enough: two sessions differ by more.
_PRECISE = 0.005
#: Noise has settled when its last `SETTLED_WINDOW` values differ by less than this share of their mean. The window is
#: as long as `LEAST_SAMPLES`, so that a few similar samples do not end a row.
_SETTLED = 0.10
SETTLED_WINDOW = 10
#: Maximum number of samples of a row whose noise never settles. Kernels of a few microseconds settle much earlier.
MOST_SAMPLES = 200
#: Number of samples whose durations and noise are known only later.
_UNSEEN_SAMPLES = 20


class Rule(Protocol):
    """Decides when an instrument has taken enough samples."""

    def enough(self, samples_us: Sequence[float]) -> bool:
        """Returns whether no further sample is needed.

        Args:
            samples_us: all samples so far, in microseconds.
        """
        ...

    def enough_count(self, count: int) -> bool:
        """Returns whether `count` samples are enough, if their durations are not known yet."""
        ...

    def batch(self, count: int) -> int:
        """Returns the number of samples to take after `count` samples, before the next call of `enough`."""
        ...

    def again(self) -> Rule | None:
        """Returns a new rule of the same settings for the remaining time; None if no time is left."""
        ...


class StopRule:
    """The Rule for one row. The time limit starts with the first call of a method."""

    def __init__(
        self, *, repeat_count: int | None, time_limit_s: float, clock: Callable[[], float] = monotonic
    ) -> None:
        """
        Args:
            repeat_count: exact number of samples; None: until precise, settled or out of time.
            time_limit_s: wall time for all samples of the row, including cache flushes.
            clock: returns seconds; replaced in tests.
        """
        self._repeat_count = repeat_count
        self._time_limit_s = time_limit_s
        self._clock = clock
        self._deadline: float | None = None
        self._count = 0
        self._mean = 0.0
        self._squares = 0.0
        self._noise: list[float] = []

    def enough(self, samples_us: Sequence[float]) -> bool:
        deadline = self._begin()
        if self._repeat_count is not None:
            return len(samples_us) >= self._repeat_count
        for sample in samples_us[self._count :]:
            self._add(sample)
        if not self._count:
            return False
        if self._clock() >= deadline or self._count >= MOST_SAMPLES:
            return True
        if self._count < LEAST_SAMPLES:
            return False
        return self._noise[-1] < _PRECISE * math.sqrt(self._count) or self._settled()

    def enough_count(self, count: int) -> bool:
        deadline = self._begin()
        if self._repeat_count is not None:
            return count >= self._repeat_count
        return count >= _UNSEEN_SAMPLES or (count >= LEAST_FOR_NOISE and self._clock() >= deadline)

    def batch(self, count: int) -> int:
        if self._repeat_count is not None:
            return max(1, self._repeat_count - count)
        return LEAST_SAMPLES

    def again(self) -> StopRule | None:
        left_s = self._time_limit_s if self._deadline is None else self._deadline - self._clock()
        return self._with_limit(left_s) if left_s > 0 else None

    def _with_limit(self, left_s: float) -> StopRule:
        return StopRule(repeat_count=self._repeat_count, time_limit_s=left_s, clock=self._clock)

    def _begin(self) -> float:
        """Returns the deadline, which the first call sets."""
        if self._deadline is None:
            self._deadline = self._clock() + self._time_limit_s
        return self._deadline

    def _add(self, sample: float) -> None:
        """Updates mean and squared deviations (Welford)."""
        self._count += 1
        delta = sample - self._mean
        self._mean += delta / self._count
        self._squares += delta * (sample - self._mean)
        deviation = math.sqrt(self._squares / (self._count - 1)) if self._count > 1 else math.inf
        self._noise.append(deviation / self._mean if self._mean else 0.0)

    def _settled(self) -> bool:
        recent = self._noise[-SETTLED_WINDOW:]
        if len(self._noise) < LEAST_SAMPLES + SETTLED_WINDOW:
            return False
        return max(recent) - min(recent) < _SETTLED * (sum(recent) / len(recent))


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


class NoInstrument:
    """Takes no samples, for rows that are only checked."""

    name = "none"

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """Returns no samples, and calls nothing."""
        return Samples(())


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


class MarkedLaunches:
    """An instrument that launches calls between marks. A profile of this process contains the durations."""

    def __init__(self, name: str, device: torch.device, synchronize: Callable[[], None]) -> None:
        """
        Args:
            name: name of the profiler.
            device: device of the marks.
            synchronize: waits until all launched work has ended.
        """
        self.name = name
        self._device = device
        self._synchronize = synchronize
        self._rows = 0
        self._begin, self._end = self._mark(BEGIN_MARK), self._mark(END_MARK)

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """Takes samples as `Instrument.sample` does, without durations, which a profile contains.

        Raises:
            ValueError: the process has already sampled MOST_ROWS rows.
        """
        number, taken = self._rows, 0
        mark = self._mark(row_mark(number))
        self._rows += 1
        mark()
        while not rule.enough_count(taken):
            if before_each:
                before_each()
            self._begin()
            call()
            self._end()
            # Waits, because queued launches would exceed the time limit.
            self._synchronize()
            taken += 1
        return Samples((), pending=PendingSamples(number, taken))

    def _mark(self, shape: tuple[int, ...]) -> Callable[[], object]:
        import torch

        source = torch.zeros(shape, device=self._device)
        target = torch.zeros_like(source)
        return lambda: torch.neg(source, out=target)


def open_msprof(kind: str, settings: MeasureSettings) -> MarkedLaunches:
    """Opens the instrument of a process that runs under msprof, on the NPU of this process."""
    import torch

    return MarkedLaunches(MSPROF, torch.device(kind), torch.get_device_module(kind).synchronize)
