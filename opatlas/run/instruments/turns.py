"""Calls that an instrument samples otherwise than one call again and again: in turn, A B B A, or with other inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from time import monotonic

from opatlas.row.rounds import LEAST_ROUNDS, MOST_ROUNDS, ROUNDS_AT_ONCE, PairVerdict, ratio_interval
from opatlas.run.instruments.instrument import StopRule


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
        self,
        turns: Turns,
        *,
        repeat_count: int | None,
        time_limit_s: float,
        clock: Callable[[], float] = monotonic,
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
