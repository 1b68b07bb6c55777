"""Ctrl-C: once stops after the running row, twice stops now."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from types import FrameType
from typing import Any

import pytest

from .session_context import BenchSession

STOPPED = "Ctrl-C: stopped after the running row"


_FIRST = "\nCtrl-C: stopping after the running row. Again: stop now, and leave the records to the next session.\n"


class Interrupts:
    """Answers SIGINT while rows run. Lives in the only process of a session, or in xdist's controller.

    Attributes:
        now: whether the user has asked twice.
    """

    def __init__(self, session: BenchSession) -> None:
        self._session = session
        self._stderr = 2
        self._asked = False
        self.now = False

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, Any, Any]:
        if self._session.plan_if_made is None or threading.current_thread() is not threading.main_thread():
            # Other tests keep pytest's answer; and only the main thread is told of signals.
            return (yield)
        # While a test runs, pytest's capture has the usual one.
        self._stderr = os.dup(2)
        before = signal.signal(signal.SIGINT, self._answer)
        try:
            return (yield)
        finally:
            signal.signal(signal.SIGINT, before)
            os.close(self._stderr)

    def _answer(self, number: int, frame: FrameType | None) -> None:
        if not self._asked:
            self._asked = True
            self._session.stop(STOPPED)
            os.write(self._stderr, _FIRST.encode())
            return
        self.now = True
        if self._session.is_controller:
            self._session.kill_workers()
        # pytest shows where a bare KeyboardInterrupt came upon it, which is nothing to a user.
        raise pytest.Session.Interrupted("stopped at once by Ctrl-C, twice")


def ignore_interrupts() -> None:
    """In a worker: Ctrl-C on a terminal reaches it too, and is the controller's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
