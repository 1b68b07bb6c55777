"""When a row has been sampled enough.

The idea is nvbench's: stop when the relative standard deviation is small, or when it has settled
(more samples of a noisy machine do not make it quieter), never before ten samples, and at a wall
limit in any case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Protocol

_LEAST_SAMPLES = 10
#: The relative standard deviation below which a row counts as quiet.
_QUIET = 0.005
#: Noise has settled when its last values lie this close together, relative to their mean. A
#: window as long as the least number of samples keeps two lucky samples from ending a row.
_SETTLED = 0.10
_WINDOW = 10
#: A kernel of a few microseconds settles long before; this bounds a row that never does.
_MOST_SAMPLES = 200
#: Where durations are known only later, and with them their noise.
_UNSEEN_SAMPLES = 20
#: Of a row that takes longer than its time limit, where its noise is asked for later.
_LEAST_UNSEEN_SAMPLES = 3


class Rule(Protocol):
    """Decides when an instrument has taken enough samples."""

    def enough(self, samples_us: Sequence[float]) -> bool:
        """Whether no further sample is needed. Each call may add one sample to the last one's."""
        ...

    def enough_count(self, count: int) -> bool:
        """The same for samples whose durations are not known yet, of which there are `count`."""
        ...

    def batch(self, count: int) -> int:
        """How many samples to take before asking again, once there are `count`, where durations come in batches."""
        ...

    def any_rank(self, happened: bool) -> bool:
        """Whether something happened to this process or, in a group, to that of any rank."""
        ...

    def again(self) -> Rule | None:
        """The same rule, fresh, with the time that is left; None where there is none."""
        ...


class StopRule:
    """A Rule, of one row; its clock starts when it is first asked."""

    def __init__(
        self,
        *,
        repeat_count: int | None,
        time_limit_s: float,
        max_noise: float | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """
        Args:
            repeat_count: take exactly so many samples; None: until quiet, settled or out of time.
            time_limit_s: wall time for all samples of the row, flushes included.
            max_noise: go on until the relative standard deviation is no more, or time is up; None: noise that has
                settled is enough, whatever it is.
            clock: seconds; for tests.
        """
        self._repeat_count = repeat_count
        self._time_limit_s = time_limit_s
        self._max_noise = math.inf if max_noise is None else max_noise
        #: Without a limit one sample of a slow row will do; fewer than three tell no noise.
        self._least_in_time = 1 if max_noise is None else _LEAST_UNSEEN_SAMPLES
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
        if self._count < self._least_in_time:
            return False
        if self._clock() >= deadline or self._count >= _MOST_SAMPLES:
            return True
        if self._count < _LEAST_SAMPLES or self._noise[-1] > self._max_noise:
            return False
        return self._noise[-1] < _QUIET or self._settled()

    def enough_count(self, count: int) -> bool:
        deadline = self._begin()
        if self._repeat_count is not None:
            return count >= self._repeat_count
        return count >= _UNSEEN_SAMPLES or (count >= _LEAST_UNSEEN_SAMPLES and self._clock() >= deadline)

    def batch(self, count: int) -> int:
        if self._repeat_count is not None:
            return max(1, self._repeat_count - count)
        return _LEAST_SAMPLES

    def any_rank(self, happened: bool) -> bool:
        return happened

    def again(self) -> StopRule | None:
        left_s = self._time_limit_s if self._deadline is None else self._deadline - self._clock()
        if left_s <= 0:
            return None
        limit = None if math.isinf(self._max_noise) else self._max_noise
        return StopRule(repeat_count=self._repeat_count, time_limit_s=left_s, max_noise=limit, clock=self._clock)

    def _begin(self) -> float:
        """The deadline; the first question starts the clock."""
        if self._deadline is None:
            self._deadline = self._clock() + self._time_limit_s
        return self._deadline

    def _add(self, sample: float) -> None:
        """Welford's update of mean and squared deviations."""
        self._count += 1
        delta = sample - self._mean
        self._mean += delta / self._count
        self._squares += delta * (sample - self._mean)
        deviation = math.sqrt(self._squares / (self._count - 1)) if self._count > 1 else math.inf
        self._noise.append(deviation / self._mean if self._mean else 0.0)

    def _settled(self) -> bool:
        recent = self._noise[-_WINDOW:]
        if len(self._noise) < _LEAST_SAMPLES + _WINDOW:
            return False
        return max(recent) - min(recent) < _SETTLED * (sum(recent) / len(recent))
