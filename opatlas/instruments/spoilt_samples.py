"""Keeps disturbed samples out: garbage collection, a stopped process, a throttled device."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import FrameType

from opatlas.instruments.instrument import Instrument, Samples
from opatlas.instruments.stop_rule import Rule
from opatlas.model.errors import ReplayError


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


#: A power cap that an earlier row has brought about ends within tenths of a second. One that does not is the row's own:
#: large matrix products draw what a GPU may draw, and heat stays for hours.
_PAUSES_S = (0.1, 0.4)


class Unthrottled:
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
        pauses = list(_PAUSES_S)
        while True:
            while reasons and pauses:
                self._sleep(pauses.pop(0))
                reasons = self._throttles()
            samples = self._instrument.sample(call, before_each, rule)
            reasons = self._throttles() or reasons
            again = rule.again() if reasons and pauses else None
            if again is None:
                return replace(samples, notes=(*samples.notes, *_notes(dropped)), throttled=_throttled(reasons))
            dropped += len(samples.durations_us)
            rule = again


def _notes(dropped: int) -> list[str]:
    were = "sample was" if dropped == 1 else "samples were"
    return [f"{dropped} {were} dropped: the device was throttled"] if dropped else []


def _throttled(reasons: tuple[str, ...]) -> str:
    return f"the device was throttled ({', '.join(reasons)})" if reasons else ""
