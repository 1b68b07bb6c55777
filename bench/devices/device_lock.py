"""Rows of concurrent sessions take turns on a device that they would otherwise share."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import gettempdir

from bench.errors import DeviceGone
from database.errors import OpAtlasError
from database.terminal import printable

#: After this time the user is told for whom a row waits: most waits are over by then.
TOLD_AFTER_S = 10.0
#: A row waits no longer. Rows of an hour are rare; a process that was left behind may hold the lock for days.
LONGEST_WAIT_S = 3600.0
#: Where a wait has a limit, the lock is asked for so often.
_ASK_EVERY_S = 0.05
#: Of a file that somebody else may have written.
_MOST_READ = 300


class DeviceLock:
    """A file lock that is held while a row runs; the system gives it up with the process that holds it.

    A POSIX record lock, and not flock or a lock library: what a kernel forks does not inherit it, so a process that
    was left behind holds nobody up. It is taken for every row, and a wait ends the moment that the other row does.
    The file says who holds the lock.
    """

    def __init__(self, path: Path) -> None:
        """Raises OpAtlasError if `path` is not a file of this user that can be written."""
        self._path = path
        self._file = _opened(path)
        self._signature = f"process {os.getpid()}, which runs in {Path.cwd()}\n".encode(errors="replace")

    @contextmanager
    def held(
        self, when_waiting: Callable[[str], None], when_taken: Callable[[], None], limit_s: float | None = None
    ) -> Iterator[None]:
        """Holds the lock.

        Args:
            when_waiting: told for what and whom, if somebody else holds the lock.
            when_taken: told when that wait is over.
            limit_s: how long to wait; None: until the lock is free, or somebody ends this process.

        Raises:
            DeviceGone: the lock was not free in time.
        """
        if not self._taken():
            holder = self._holder()
            when_waiting(holder)
            if limit_s is None:
                fcntl.lockf(self._file, fcntl.LOCK_EX)
            else:
                self._take_in_time(limit_s, holder)
            when_taken()
        # A full disk costs the name of the holder, and no row.
        with suppress(OSError):
            os.ftruncate(self._file, os.pwrite(self._file, self._signature, 0))
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _taken(self) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            # Systems differ in which of these they give.
            return False
        return True

    def _take_in_time(self, limit_s: float, holder: str) -> None:
        deadline = time.monotonic() + limit_s
        while not self._taken():
            if time.monotonic() > deadline:
                raise waited_too_long(limit_s, holder)
            time.sleep(_ASK_EVERY_S)

    def _holder(self) -> str:
        """The file, and who holds the lock as far as the file says."""
        said = printable(os.pread(self._file, _MOST_READ, 0).decode(errors="replace").strip())
        return f"{self._path}, held by {said or 'a process that has not said who it is'}"


class LockWait:
    """A row's wait for the lock of its device, as whoever waits for the row sees it."""

    def __init__(self, holder: str, tell: Callable[[str], None]) -> None:
        """
        Args:
            holder: the lock, and who holds it.
            tell: shows the user a line.
        """
        self._holder = holder
        self._tell = tell
        self._began = time.monotonic()
        self._told = False

    def left_s(self) -> float:
        """Seconds until `go_on` is to be called."""
        limit_s = LONGEST_WAIT_S if self._told else min(TOLD_AFTER_S, LONGEST_WAIT_S)
        return max(self._began + limit_s - time.monotonic(), 0.0)

    def go_on(self) -> None:
        """Tells the user for whom the row waits, once. Raises DeviceGone when it has waited too long."""
        if time.monotonic() - self._began >= LONGEST_WAIT_S:
            raise waited_too_long(LONGEST_WAIT_S, self._holder)
        if not self._told:
            self._told = True
            self._tell(f"waiting for the device: {self._holder}; no longer than {LONGEST_WAIT_S:g} s")


def waited_too_long(limit_s: float, holder: str) -> DeviceGone:
    """What a row is told that did not get its device in time."""
    return DeviceGone(f"waited {limit_s:g} s for the device, which another session has: {holder}; end that process")


def lock_of(device: str) -> DeviceLock:
    """The lock of a device of this machine for all sessions of this user, by a name that they all have for it."""
    # By the user's number, because a container's user need not have a name.
    return DeviceLock(Path(gettempdir()) / f"opatlas-{device}-{os.getuid()}.lock")


def _opened(path: Path) -> int:
    """Raises OpAtlasError."""
    remedy = "remove it, or name another folder for temporary files with TMPDIR"
    try:
        # No link is followed: in a folder that all users share, anybody may have put one there.
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OpAtlasError(f"{path}: the lock of the device cannot be opened ({error.strerror}): {remedy}") from None
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
        os.close(file)
        whose = "belongs to another user" if stat.S_ISREG(found.st_mode) else "is no file"
        raise OpAtlasError(f"{path}: the lock of the device {whose}: {remedy}")
    return file
