"""Takes the samples of a row, on one device or on each device of a group: memory, warm-up, cache, turns, stop rule.

Calls may be sampled otherwise than one call again and again: in turn, A B B A, or with other inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from time import monotonic

from opatlas.row.errors import OutOfMemory
from opatlas.row.quality import HOST_BOUND
from opatlas.row.record import Execution, Measurement, Rounds
from opatlas.row.rounds import LEAST_ROUNDS, MOST_ROUNDS, ROUNDS_AT_ONCE, PairVerdict, ratio_interval
from opatlas.row.status import Status
from opatlas.run.devices.device import Device
from opatlas.run.group import Group
from opatlas.run.instruments.instrument import Instrument, MeasureSettings, Samples, StopRule
from opatlas.run.job import RowOutcome, describe_stand_in
from opatlas.run.kernel_call import KernelCall
from opatlas.run.result_check import Checked


class Turns:
    """Calls that take turns: an instrument samples this object as if it were one call.

    The order is a palindrome (A B B A, of three A B C C B A), so that a level that rises or falls evenly is in the
    mean the same for all of them.

    Attributes:
        made: the index of the call of each launch so far.
    """

    def __init__(self, calls: Sequence[Callable[[], object]], prepare: Sequence[Callable[[], object]]) -> None:
        """
        Args:
            calls: each launches its kernel.
            prepare: for each call what restores and flushes before it.
        """
        self.made: list[int] = []
        self._calls = calls
        self._prepare = prepare
        self._order: list[int] = [*range(len(calls)), *reversed(range(len(calls)))]
        self._current = calls[0]

    def __len__(self) -> int:
        return len(self._calls)

    def before_each(self) -> None:
        """Prepares the next call; it is not timed, so it does what there is to decide."""
        turn = self._order[len(self.made) % len(self._order)]
        self.made.append(turn)
        self._current = self._calls[turn]
        self._prepare[turn]()

    def __call__(self) -> None:
        self._current()

    def split(self, values: Sequence[float]) -> list[list[float]]:
        """Returns the values of the last launches by call, as many of each: those of whole rounds."""
        found: list[list[float]] = [[] for _ in self._calls]
        for turn, value in zip(self.made[len(self.made) - len(values) :], values, strict=True):
            found[turn].append(value)
        rounds = min(map(len, found))
        return [each[:rounds] for each in found]


class Varying:
    """A call whose inputs differ from launch to launch, so that it may launch other kernels each time."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call

    def __call__(self) -> None:
        self._call()


class RoundsRule(StopRule):
    """The rule of an instrument for `Turns`: ends the rounds when they have an answer, or their time is over.

    The kernel is the first of the calls, the baseline the second.
    """

    def __init__(
        self, turns: Turns, *, repeat_count: int | None, time_limit_s: float, clock: Callable[[], float] = monotonic
    ) -> None:
        """`repeat_count` is the exact number of rounds; None: until they have an answer."""
        super().__init__(repeat_count=repeat_count, time_limit_s=time_limit_s, clock=clock)
        self._turns = turns

    def enough(self, samples_us: Sequence[float]) -> bool:
        deadline = self._begin()
        kernel, baseline, *_ = self._turns.split(samples_us)
        rounds = len(kernel)
        if self._repeat_count is not None:
            return rounds >= self._repeat_count
        if rounds and (rounds >= MOST_ROUNDS or self._clock() >= deadline):
            return True
        if rounds < LEAST_ROUNDS or rounds % ROUNDS_AT_ONCE:
            return False
        return ratio_interval(baseline, kernel).verdict() is not PairVerdict.AMBIGUOUS

    def enough_count(self, count: int) -> bool:
        self._begin()
        return count >= len(self._turns) * (self._repeat_count or LEAST_ROUNDS)

    def batch(self, count: int) -> int:
        rounds = self._repeat_count or ROUNDS_AT_ONCE * math.ceil((count // len(self._turns) + 1) / ROUNDS_AT_ONCE)
        return max(1, rounds * len(self._turns) - count)

    def _with_limit(self, left_s: float) -> RoundsRule:
        return RoundsRule(self._turns, repeat_count=self._repeat_count, time_limit_s=left_s, clock=self._clock)


@dataclass(frozen=True)
class Sampling:
    """Takes the samples of one row on one device. The ranks of a group take equally many samples."""

    device: Device
    instrument: Instrument
    settings: MeasureSettings
    group: Group

    def expect_memory(self, needed_bytes: float) -> None:
        """Raises OutOfMemory if the device has less available memory than `needed_bytes`."""
        available = self.device.available_bytes()
        if needed_bytes > available:
            needed, left = (f"{own / 2**30:.1f} GiB" for own in (needed_bytes, available))
            raise OutOfMemory(f"needs about {needed}, {left} are available on the device")

    def warm_up(self, call: Callable[[], object], *, most_calls: int, until: float) -> None:
        """Calls at most `most_calls` times, not after the time `until` of `time.monotonic`, and only before samples."""
        for _ in range(most_calls if self.settings.measures else 0):
            if self.group.first_rank_decides(monotonic() < until):
                call()

    def take(self, call: Callable[[], object], restore: Callable[[], object] | None) -> Samples:
        """Takes samples of `call` according to the settings, and waits for the device.

        Args:
            call: launches the kernel.
            restore: restores the tensors that a call overwrites; None if the call overwrites nothing.
        """
        needs_nothing = self.settings.cache != "cold" and restore is None
        before_each = None if needs_nothing else self._before_each(restore)
        rule = StopRule(repeat_count=self.settings.repeat_count, time_limit_s=self.settings.time_limit_s)
        samples = self.instrument.sample(call, before_each, rule)
        self.device.synchronize()
        return samples

    def _before_each(self, restore: Callable[[], object] | None) -> Callable[[], None]:
        """Returns what prepares each sample; `restore` is that of `take`."""
        cold = self.settings.cache == "cold"

        def before_each() -> None:
            if restore is not None:
                restore()
            if cold:
                self.device.flush_cache()

        return before_each

    def take_turns(self, calls: Sequence[KernelCall]) -> tuple[Samples, Rounds]:
        """Takes samples of a kernel and its baseline in turn, and waits for the device.

        Args:
            calls: the kernel, the baseline, and for a control the baseline once more.

        Returns:
            the samples of the kernel, and the rounds: of spans where a call launches several kernels, unless the host
            decides how far these are apart.
        """
        restores = [call.restore if call.changes_tensors else None for call in calls]
        prepare = [self._before_each(restore) for restore in restores]
        turns = Turns([call.launch for call in calls], prepare)
        # Each of them has the time that a row has.
        limit_s = self.settings.time_limit_s * len(calls)
        rule = RoundsRule(turns, repeat_count=self.settings.repeat_count, time_limit_s=limit_s)
        samples = self.instrument.sample(turns, turns.before_each, rule)
        self.device.synchronize()
        sums, spans = turns.split(samples.durations_us), turns.split(samples.spans_us)
        waits_for_host = any(
            median(each) > HOST_BOUND * median(us) for each, us in zip(spans, sums, strict=True) if each
        )
        compared = sums if self.group.first_rank_decides(waits_for_host or not spans[0]) else spans
        own = replace(samples, durations_us=tuple(sums[0]), spans_us=tuple(spans[0]))
        return own, Rounds(*map(tuple, compared))

    def outcome(
        self,
        samples: Samples,
        checked: Checked,
        *,
        execution: Execution | None = None,
        assumed: Sequence[str] = (),
        noted: Sequence[str] = (),
        operators: Sequence[str] = (),
        against: str = "",
        rounds: Rounds | None = None,
    ) -> RowOutcome:
        """Returns the outcome of a row with these samples, which may be pending.

        Args:
            samples: the samples.
            checked: the comparison of the results with the formula.
            execution: the implementation and its set-up; None: unknown.
            assumed: assumptions about the row.
            noted: remarks for the reason, besides those of the instrument.
            operators: operators of torch that one call used in place of the kernel.
            against, rounds: the baseline, and the rounds with it; None if there are none.
        """
        notes = (*samples.notes, *noted)
        if not self.settings.measures:
            return RowOutcome(Status.CHECKED, "; ".join(("called once, and not measured", *notes)))
        measurement = Measurement(
            samples_us=samples.durations_us,
            instrument=self.instrument.name,
            cache_state=self.settings.cache,
            device_kernels=samples.device_kernels,
            calls_per_sample=samples.calls_per_sample,
            checked_elements=checked.elements,
            total_elements=checked.total,
            execution=replace(
                execution or Execution(),
                kernel_names=samples.kernel_names,
                span_us=median(samples.spans_us) if samples.spans_us else None,
                max_error=checked.error,
            ),
            assumptions=tuple(assumed),
            throttled=samples.throttled,
            stand_in=describe_stand_in(operators, samples.device_kernels),
            against=against,
            rounds=(rounds,) if rounds is not None else (),
        )
        return RowOutcome(Status.MEASURED, "; ".join(notes), measurement=measurement, pending=samples.pending)
