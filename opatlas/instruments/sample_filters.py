"""Keeps disturbed samples out: garbage collection, a stopped process, a throttled device."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import FrameType

from opatlas.instruments.instrument import Instrument, Samples
from opatlas.instruments.stop_rule import Rule
from opatlas.model.errors import ReplayError

#: So many samples of a row may have a pause. More are no accident.
_MOST_DROPPED = 10

_count = 0


def count_stops() -> None:
    """From now on `pauses` counts. Only the main thread may ask for signals; from another, nothing is counted."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGCONT) is _on_continue:
        return
    signal.signal(signal.SIGCONT, _on_continue)
    # What a library waits for in C is not interrupted by it.
    signal.siginterrupt(signal.SIGCONT, False)


def stops() -> int:
    """How often this process went on after a stop."""
    return _count


def _on_continue(number: int, frame: FrameType | None) -> None:
    global _count
    _count += 1


class StopFilter:
    """Watches the samples of one row, one after the other."""

    def __init__(self, rule: Rule) -> None:
        """`rule` is asked whether another rank of the group had a pause."""
        self._rule = rule
        self._before = 0
        self._dropped = 0

    def begin(self) -> None:
        """A sample begins."""
        self._before = stops()

    def is_spoilt(self) -> bool:
        """Whether the sample that ended just now had a pause, and has to be taken again.

        Raises:
            ReplayError: too many had one.
        """
        if not self._rule.any_rank(stops() != self._before):
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


#: A power cap that an earlier row has brought about ends within tenths of a second. One that does not is the row's own:
#: large matrix products draw what a GPU may draw, and heat stays for hours.
_PAUSES_S = (0.1, 0.4)


class UnthrottledInstrument:
    """Another instrument, watched: it does not sample while the device is throttled, as long as that ends."""

    def __init__(
        self,
        instrument: Instrument,
        throttles: Callable[[], tuple[str, ...]],
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`throttles` tells why the device is slower now than it could be; () where it is not."""
        self.name = instrument.name
        self._instrument = instrument
        self._throttles = throttles
        self._sleep = sleep

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """As in `Instrument`. The notes name dropped samples; `throttled` tells of those that were kept."""
        dropped, reasons = 0, self._throttles()
        stops = list(_PAUSES_S)
        while True:
            while reasons and stops:
                self._sleep(stops.pop(0))
                reasons = self._throttles()
            samples = self._instrument.sample(call, before_each, rule)
            reasons = self._throttles() or reasons
            again = rule.again() if reasons and stops else None
            if again is None:
                return replace(samples, notes=(*samples.notes, *_notes(dropped)), throttled=_throttled(reasons))
            dropped += len(samples.durations_us)
            rule = again


def _notes(dropped: int) -> list[str]:
    were = "sample was" if dropped == 1 else "samples were"
    return [f"{dropped} {were} dropped: the device was throttled"] if dropped else []


def _throttled(reasons: tuple[str, ...]) -> str:
    return f"the device was throttled ({', '.join(reasons)})" if reasons else ""
