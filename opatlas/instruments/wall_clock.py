"""Wall clock: for devices whose calls return when they are done."""

from __future__ import annotations

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from types import FrameType

from opatlas.engine.errors import ReplayError
from opatlas.engine.job import MeasureSettings
from opatlas.engine.stop_rule import Rule
from opatlas.instruments.instrument import Samples


@contextmanager
def without_collections() -> Iterator[None]:
    """No collection starts by itself meanwhile."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


#: So many samples of a row may have a pause. More are no accident.
_MOST_DROPPED = 10

_count = 0


def count_pauses() -> None:
    """From now on `pauses` counts. Only the main thread may ask for signals; from another, nothing is counted."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGCONT) is _went_on:
        return
    signal.signal(signal.SIGCONT, _went_on)
    # What a library waits for in C is not interrupted by it.
    signal.siginterrupt(signal.SIGCONT, False)


def pauses() -> int:
    """How often this process went on after a stop."""
    return _count


def _went_on(number: int, frame: FrameType | None) -> None:
    global _count
    _count += 1


class WithoutPauses:
    """Watches the samples of one row, one after the other."""

    def __init__(self, rule: Rule) -> None:
        """`rule` is asked whether another rank of the group had a pause."""
        self._rule = rule
        self._before = 0
        self._dropped = 0

    def begin(self) -> None:
        """A sample begins."""
        self._before = pauses()

    def spoilt(self) -> bool:
        """Whether the sample that ended just now had a pause, and has to be taken again.

        Raises:
            ReplayError: too many had one.
        """
        if not self._rule.any_rank(pauses() != self._before):
            return False
        self._dropped += 1
        if self._dropped > _MOST_DROPPED:
            raise ReplayError(
                f"the process was stopped and went on (SIGSTOP, SIGCONT) in {self._dropped} samples: run the row again "
                "when nobody stops it"
            )
        return True

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the durations should know."""
        dropped = f"{self._dropped} sample{'s were' if self._dropped > 1 else ' was'} dropped"
        return (f"{dropped}: the process was stopped meanwhile",) if self._dropped else ()


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
        sample = WithoutPauses(rule)
        with without_collections():
            while not rule.enough(durations_us):
                if before_each:
                    before_each()
                sample.begin()
                start = perf_counter_ns()
                for _ in range(calls):
                    call()
                stop = perf_counter_ns()
                if not sample.spoilt():
                    durations_us.append((stop - start) / calls / 1000)
        return Samples(tuple(durations_us), device_kernels=None, calls_per_sample=calls, notes=sample.notes)


def _calls_per_sample(call: Callable[[], object]) -> int:
    """Calls that together last long enough for the clock."""
    calls = 1
    while True:
        before = pauses()
        start = perf_counter_ns()
        for _ in range(calls):
            call()
        elapsed = perf_counter_ns() - start
        if pauses() != before:
            continue
        if elapsed >= _SHORTEST_SAMPLE_NS or calls >= _MOST_CALLS_PER_SAMPLE:
            return calls
        calls = min(_MOST_CALLS_PER_SAMPLE, calls * 2 if elapsed <= 0 else -(-calls * _SHORTEST_SAMPLE_NS // elapsed))


def of(settings: MeasureSettings) -> WallClock:
    return WallClock()
