"""Discards disturbed samples: samples during which the process was stopped, or the device was throttled."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

from opatlas.row.errors import ReplayError
from opatlas.run.instruments.instrument import Instrument, Samples
from opatlas.run.instruments.stop_rule import Rule

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
