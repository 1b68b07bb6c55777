"""Ctrl-C: the first press ends the session after the running row, the second press ends it now."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from .session_context import SessionContext

STOPPED = "Ctrl-C: stopped after the running row"

_FIRST_ANSWER = (
    "\nCtrl-C: stopping after the running row.\n"
    "A second Ctrl-C stops at once, and leaves the records to the next session.\n"
)


class Interrupts:
    """Answers Ctrl-C while rows run: the first stops after the running row, the second stops now.

    Only the main process of a session has one: the only process, or the controller of xdist.

    Attributes:
        now: whether the user pressed Ctrl-C twice.
    """

    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._stderr = 2
        self._is_first = True
        self.now = False

    @contextlib.contextmanager
    def handler(self) -> Iterator[None]:
        """Answers SIGINT within the context; other tests than replays keep pytest's answer."""
        if self._context.plan is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        # While a test runs, descriptor 2 is pytest's capture.
        self._stderr = os.dup(2)
        before = signal.signal(signal.SIGINT, self._answer)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)
            os.close(self._stderr)

    def _answer(self, number: int, frame: FrameType | None) -> None:
        if self._is_first:
            self._is_first = False
            self._context.stop(STOPPED)
            os.write(self._stderr, _FIRST_ANSWER.encode())
            return
        self.now = True
        if self._context.is_controller:
            self._context.kill_workers()
        # pytest would print where a KeyboardInterrupt was raised, which helps no user.
        raise pytest.Session.Interrupted("stopped at once by Ctrl-C, twice")
