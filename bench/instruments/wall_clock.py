"""Wall clock: for devices whose calls return when they are done."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter_ns

from bench.instruments import Samples
from bench.instruments.collector import without_collections
from bench.instruments.pauses import WithoutPauses, pauses
from bench.job import MeasureSettings
from bench.stop_rule import Rule

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
