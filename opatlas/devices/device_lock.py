"""Rows of concurrent sessions take turns on a device that they would otherwise share."""

from __future__ import annotations

import fcntl
import os
import platform
import shlex
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import gettempdir

from opatlas.errors import OpAtlasError
from opatlas.model.errors import DeviceGone
from opatlas.store.database import SessionHolder
from opatlas.text import printable
from opatlas.typed_json import DecodeError, decode, json_line

#: JSON of the session (a `SessionHolder`) that a process and its children belong to; lock files name this session.
SESSION_VARIABLE = "OPATLAS_SESSION"
#: When rows have waited this long in all, the user is told for which session.
ANNOUNCED_AFTER_S = 2.0
#: A row waits no longer. Rows of an hour are rare; a process that was left behind may hold the lock for days.
LONGEST_WAIT_S = 3600.0
#: Where a wait has a limit, the lock is asked for so often.
_ASK_EVERY_S = 0.05
#: Of a file that somebody else may have written.
_MOST_READ = 4096
#: Of a session's command line.
_MOST_COMMAND = 200


@dataclass(frozen=True)
class LockHolder:
    """Who holds the lock of a device.

    Attributes:
        name: the session, its process and its command, as far as the lock file says.
        path: the lock file.
        own_session: whether the holder is another worker of the session that waits.
    """

    name: str
    path: str
    own_session: bool = False

    def __str__(self) -> str:
        return f"{self.name} (lock {self.path})"


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
        self._session = _own_session()
        self._signature = json_line(asdict(self._session)).encode(errors="replace")

    @contextmanager
    def held(
        self, when_waiting: Callable[[LockHolder], None], when_taken: Callable[[], None], limit_s: float | None = None
    ) -> Iterator[None]:
        """Holds the lock.

        Args:
            when_waiting: called with the holder, if somebody else holds the lock.
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

    def _take_in_time(self, limit_s: float, holder: LockHolder) -> None:
        deadline = time.monotonic() + limit_s
        while not self._taken():
            if time.monotonic() > deadline:
                raise lock_timeout(limit_s, holder)
            time.sleep(_ASK_EVERY_S)

    def _holder(self) -> LockHolder:
        try:
            session = decode(os.pread(self._file, _MOST_READ, 0), SessionHolder, str(self._path))
        except DecodeError:
            return LockHolder("a process that has not said who it is", str(self._path))
        return LockHolder(printable(str(session)), str(self._path), session.run_id == self._session.run_id)


class DeviceWaits:
    """Times how long the rows of a process wait for their device, and tells the user for whom.

    A context of each job: waits that go on at its end are ended.

    Attributes:
        tell: shows the user a line.
        others_s: seconds that rows have waited for rows of other sessions.
        own_s: seconds that rows have waited for rows of other workers of the same session.
        interrupted: whether the last job ended before it had its device.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self.others_s = 0.0
        self.own_s = 0.0
        self.interrupted = False
        self._told: set[LockHolder] = set()
        self._going_on: list[LockWait] = []

    def __enter__(self) -> None:
        self.interrupted = False

    def __exit__(self, *_: object) -> None:
        self.interrupted = bool(self._going_on)
        for wait in list(self._going_on):
            wait.end()

    @property
    def current(self) -> LockWait | None:
        """The wait that goes on; None where no row waits."""
        return next(iter(self._going_on), None)

    def begin(self, holder: LockHolder) -> LockWait:
        """Begins a wait."""
        wait = LockWait(holder, self)
        self._going_on.append(wait)
        return wait

    def is_announced(self, holder: LockHolder) -> bool:
        """Whether the user knows of a holder. Nobody is told of the workers of the own session."""
        return holder.own_session or holder in self._told

    def announce(self, holder: LockHolder) -> None:
        """Tells the user of a holder, once."""
        if not self.is_announced(holder):
            self._told.add(holder)
            self.tell(f"waiting for the device, which another session uses: {holder}; at most {LONGEST_WAIT_S:g} s")

    def end(self, wait: LockWait) -> None:
        """Ends a wait, and adds it to the totals."""
        self._going_on.remove(wait)
        if wait.holder.own_session:
            self.own_s += wait.seconds
        else:
            self.others_s += wait.seconds


class LockWait:
    """A row's wait for the lock of its device.

    Attributes:
        holder: who held the lock when the wait began.
    """

    def __init__(self, holder: LockHolder, waits: DeviceWaits) -> None:
        self.holder = holder
        self._waits = waits
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long the wait has lasted."""
        return time.monotonic() - self._began

    def left_s(self) -> float:
        """Seconds until `go_on` is to be called."""
        limit_s = LONGEST_WAIT_S
        if not self._waits.is_announced(self.holder):
            limit_s = min(ANNOUNCED_AFTER_S - self._waits.others_s, limit_s)
        return max(limit_s - self.seconds, 0.0)

    def check_limit(self) -> None:
        """Tells the user for whom the row waits. Raises DeviceGone when the row has waited too long."""
        if self.seconds >= LONGEST_WAIT_S:
            raise lock_timeout(LONGEST_WAIT_S, self.holder)
        self._waits.announce(self.holder)

    def end(self) -> None:
        """Ends the wait, whether or not the row got its device."""
        self._waits.end(self)


def lock_timeout(limit_s: float, holder: LockHolder) -> DeviceGone:
    """The error of a row that did not get its device in time."""
    return DeviceGone(f"waited {limit_s:g} s for the device, which another session has: {holder}; end that session")


def announce_session(run_id: str, command: str) -> None:
    """Names the session that this process, and every process that it starts, belongs to."""
    os.environ[SESSION_VARIABLE] = json_line(asdict(_session_of_this_process(run_id, command)))


def _own_session() -> SessionHolder:
    with suppress(DecodeError):
        return decode(os.environ.get(SESSION_VARIABLE, ""), SessionHolder, SESSION_VARIABLE)
    return _session_of_this_process(f"of process {os.getpid()}", shlex.join(sys.argv))


def _session_of_this_process(run_id: str, command: str) -> SessionHolder:
    return SessionHolder(run_id, command[:_MOST_COMMAND], os.getpid(), platform.node(), time.time())


def device_lock(device: str) -> DeviceLock:
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
