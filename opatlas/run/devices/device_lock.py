"""Locks a device while a row runs, so that rows of concurrent sessions run one at a time."""

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

from opatlas import formats
from opatlas.errors import OpAtlasError
from opatlas.row.errors import DeviceGone
from opatlas.row.record import SessionHolder
from opatlas.text import printable
from opatlas.typed_json import DecodeError, decode, json_line

#: Environment variable with the session (JSON of a `SessionHolder`) of a process and its children, for lock files.
SESSION_VARIABLE = "OPATLAS_SESSION"
#: Longest wait of a row. Rows of an hour are rare; an abandoned process may hold the lock for days.
LONGEST_WAIT_S = 3600.0
#: Interval between attempts to take the lock during a wait with a limit.
_ASK_EVERY_S = 0.05
#: Maximum length that is read of a lock file, which another program may have written.
_MOST_READ = 4096
#: Longest command line of a session in a lock file.
_MOST_COMMAND = 200


@dataclass(frozen=True)
class LockHolder:
    """The holder of a device's lock.

    Attributes:
        name: session, process and command of the holder; the lock file, if it does not name them.
        own_session: whether the holder is another worker of the waiting session.
    """

    name: str
    own_session: bool = False


class DeviceLock:
    """A file lock that is held while a row runs. The system releases it when the holding process ends.

    This is a POSIX record lock, neither flock nor a library's lock: a process that a kernel forks does not inherit the
    lock, so an abandoned process blocks no other session. Each row takes the lock again. The file names the holder.
    """

    def __init__(self, path: Path) -> None:
        """Opens the lock file. Raises OpAtlasError if `path` is not a writable regular file of this user."""
        self._path = path
        self._file = _open_lock_file(path)
        self._session = _own_session()
        self._signature = json_line(asdict(self._session)).encode()

    @contextmanager
    def held(
        self, when_waiting: Callable[[LockHolder], object], when_taken: Callable[[], None], limit_s: float | None = None
    ) -> Iterator[None]:
        """Holds the lock.

        Args:
            when_waiting: called with the holder, if another process holds the lock.
            when_taken: called at the end of that wait.
            limit_s: longest wait in seconds; None: no limit.

        Raises:
            DeviceGone: the lock was not released in time.
        """
        if not self._try_take():
            holder = self._holder()
            when_waiting(holder)
            if limit_s is None:
                fcntl.lockf(self._file, fcntl.LOCK_EX)
            else:
                self._take_in_time(limit_s, holder)
            when_taken()
        # On a full disk the file does not name the holder; the row runs anyway. Not written for each row: a write waits
        # for the sync of a journal on the same disk.
        with suppress(OSError):
            if os.pread(self._file, len(self._signature) + 1, 0) != self._signature:
                os.ftruncate(self._file, os.pwrite(self._file, self._signature, 0))
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _try_take(self) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            # The type of the error depends on the system.
            return False
        return True

    def _take_in_time(self, limit_s: float, holder: LockHolder) -> None:
        deadline = time.monotonic() + limit_s
        while not self._try_take():
            if time.monotonic() > deadline:
                raise lock_timeout(limit_s, holder)
            time.sleep(_ASK_EVERY_S)

    def _holder(self) -> LockHolder:
        try:
            session = decode(os.pread(self._file, _MOST_READ, 0), SessionHolder, str(self._path))
        except DecodeError:
            return LockHolder(f"an unnamed process (lock {self._path})")
        return LockHolder(printable(str(session)), session.run_id == self._session.run_id)


class DeviceWaits:
    """The waits of a process's rows for their device; shows the user once which session holds it.

    Used as a context around each job: the end of a job also ends its wait.

    Attributes:
        tell: shows a line to the user.
        interrupted: whether the last job ended during its wait.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self.interrupted = False
        self._shown: set[LockHolder] = set()
        self._going_on: list[LockWait] = []

    def __enter__(self) -> None:
        self.interrupted = False

    def __exit__(self, *_: object) -> None:
        self.interrupted = bool(self._going_on)
        self._going_on.clear()

    @property
    def current(self) -> LockWait | None:
        """Returns the current wait; None if no row waits."""
        return next(iter(self._going_on), None)

    def begin(self, holder: LockHolder) -> LockWait:
        """Begins a wait."""
        if not holder.own_session and holder not in self._shown:
            self._shown.add(holder)
            self.tell(f"waiting for the device, at most {formats.seconds(LONGEST_WAIT_S)}: it is used by {holder.name}")
        wait = LockWait(holder)
        self._going_on.append(wait)
        return wait

    def end(self, wait: LockWait | None = None) -> None:
        """Ends a wait, by default that which goes on, whether or not the row has its device."""
        self._going_on[:] = [each for each in self._going_on if wait is not None and each is not wait]


class LockWait:
    """The wait of a row for its device's lock.

    Attributes:
        holder: the holder of the lock when the wait began.
    """

    def __init__(self, holder: LockHolder) -> None:
        self.holder = holder
        self._began = time.monotonic()

    def left_s(self) -> float:
        """Returns the seconds that the row may still wait. Raises DeviceGone after `LONGEST_WAIT_S`."""
        left_s = self._began + LONGEST_WAIT_S - time.monotonic()
        if left_s <= 0:
            raise lock_timeout(LONGEST_WAIT_S, self.holder)
        return left_s


def lock_timeout(limit_s: float, holder: LockHolder) -> DeviceGone:
    """Returns the error for a row that waited too long for its device."""
    return DeviceGone(f"waited {limit_s:g} s for the device, which is used by {holder.name}: end that session")


def announce_session(run_id: str, command: str) -> None:
    """Sets the session that this process and its descendants name in lock files."""
    os.environ[SESSION_VARIABLE] = json_line(asdict(_session_of_this_process(run_id, command)))


def _own_session() -> SessionHolder:
    with suppress(DecodeError):
        return decode(os.environ.get(SESSION_VARIABLE, ""), SessionHolder, SESSION_VARIABLE)
    return _session_of_this_process(f"of process {os.getpid()}", shlex.join(sys.argv))


def _session_of_this_process(run_id: str, command: str) -> SessionHolder:
    return SessionHolder(run_id, command[:_MOST_COMMAND], os.getpid(), platform.node(), time.time())


def device_lock(device: str) -> DeviceLock:
    """Returns the lock of a device of this machine, shared by all sessions of this user.

    Args:
        device: a name of the device that all sessions use, such as its UUID.
    """
    # The user's id is used because the user of a container may have no name.
    return DeviceLock(Path(gettempdir()) / f"opatlas-{device}-{os.getuid()}.lock")


def _open_lock_file(path: Path) -> int:
    """Opens a lock file. Raises OpAtlasError if that fails, or for an irregular file or a file of another user."""
    remedy = "remove it, or set TMPDIR to another folder for temporary files"
    try:
        # Links are not followed: in a shared folder any user may have created one.
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise OpAtlasError(f"{path}: the lock of the device cannot be opened ({error.strerror}): {remedy}") from None
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
        os.close(file)
        whose = "belongs to another user" if stat.S_ISREG(found.st_mode) else "is not a regular file"
        raise OpAtlasError(f"{path}: the lock of the device {whose}: {remedy}")
    return file
