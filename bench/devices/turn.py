"""Rows of concurrent sessions take turns on a device that they would otherwise share."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType


class Turn:
    """A file lock that is held while a row runs; it is given up with the process that holds it.

    flock itself, and not a lock library, which the database uses: here it is taken for every row,
    and waiting for another session's row must end the moment that row does, without polling.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def __enter__(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)
