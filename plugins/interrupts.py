"""Ctrl-C and signals that end pytest.

The first Ctrl-C ends the session after the running row, the second ends it now.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from opatlas.data.journal import count_run_records
from opatlas.text import pluralize

from .session_context import SessionContext

STOPPED = "Ctrl-C: stopped after the running row"

_FIRST_ANSWER = (
    "\nCtrl-C: stopping after the running row.\n"
    "A second Ctrl-C stops at once, and leaves the records to the next session.\n"
)


#: These end pytest without a word.
_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def kept_lines(context: SessionContext, ended: str) -> Iterator[str]:
    """Yields which journals keep the records of a session that does not merge them; nothing with --read-only.

    Args:
        ended: how the session ended.
    """
    for each in context.databases if context.settings.writes else ():
        try:
            count = count_run_records(each.database, context.run_id)
            kept = pluralize(count, "record stays", "records stay")
        except OSError as error:
            kept = f"the records stay ({error.strerror})"
        folder = each.database.journal_dir
        yield f"{ended}: {kept} in {folder}; the next session on this database merges them"


class Interrupts:
    """Answers Ctrl-C while rows run: the first stops after the running row, the second stops now.

    Signals that end pytest still do; before that the user is told where the records are.

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
        """Answers signals within the context; other tests than replays keep pytest's answer."""
        if self._context.plan is None or threading.current_thread() is not threading.main_thread():
            yield
            return
        # While a test runs, descriptor 2 is pytest's capture.
        self._stderr = os.dup(2)
        before: dict[int, Any] = {signal.SIGINT: signal.signal(signal.SIGINT, self._answer)}
        # In this process a kernel that hangs would keep Python from answering. `nohup` ignores SIGHUP.
        for number in () if self._context.settings.in_process else _ENDING:
            if signal.getsignal(number) is signal.SIG_DFL:
                before[number] = signal.signal(number, self._tell_and_end)
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
            os.close(self._stderr)

    def _tell_and_end(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        lines = "\n".join(kept_lines(self._context, f"ended by {signal.Signals(number).name}"))
        # The terminal may be gone.
        with contextlib.suppress(OSError):
            os.write(self._stderr, f"\n{lines}\n".encode(errors="backslashreplace"))
        os.kill(os.getpid(), number)

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
