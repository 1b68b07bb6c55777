"""Pauses of this process, kept out of samples: it was stopped (SIGSTOP, Ctrl-Z) and went on.

The system sends SIGCONT to whoever goes on, and that signal can be counted: a pause is known for certain, and no slow
sample is ever taken for one. What leaves no SIGCONT is not seen: a control group or a virtual machine that is frozen.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType

from bench.errors import ReplayError
from bench.stop_rule import Rule

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
