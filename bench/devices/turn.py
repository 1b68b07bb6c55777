"""Rows of concurrent sessions take turns on a device that they would otherwise share."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir


class Turn:
    """A file lock that is held while a row runs; it is given up with the process that holds it.

    flock itself, and not a lock library, which the database uses: here it is taken for every row,
    and waiting for another session's row must end the moment that row does, without polling.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    @contextmanager
    def taken(self, when_waiting: Callable[[], None], when_taken: Callable[[], None]) -> Iterator[None]:
        """Holds the lock; tells when that means to wait, and then when the wait is over."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            when_waiting()
            fcntl.flock(self._file, fcntl.LOCK_EX)
            when_taken()
        try:
            yield
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)


def turn_on(device: str) -> Turn:
    """The turn of all sessions of this user on a device of this machine, by a name that they all have for it."""
    # By the user's number, because a container's user need not have a name.
    return Turn(Path(gettempdir()) / f"opatlas-{device}-{os.getuid()}.lock")
