"""One session at a time on a database, and everybody can see whose."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from filelock import Timeout
from msgspec import Meta

from opatlas.errors import OpAtlasError
from opatlas.files import own_lock, read_own
from opatlas.store.csv_files import Database, not_writable, write_text
from opatlas.typed_json import DecodeError, decode, json_line


@dataclass(frozen=True)
class Holder:
    """A session that has, or had, a database for itself.

    Attributes:
        run_id, command: the session.
        pid, host: its process.
        since: when it took the lock, in seconds since the epoch and before the year 10000.
    """

    run_id: str
    command: str
    pid: int
    host: str
    since: Annotated[float, Meta(ge=0, lt=253402300800)]

    def __str__(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"session {self.run_id} (process {self.pid} on {self.host}, since {since}: {self.command})"


_POLL_S = 0.2
_LARGEST_BYTES = 1 << 20


class SessionLock:
    """Held from the plan of a session to its merge.

    The kernel gives a lock up with the process that holds it, however that ends. So a lock that can
    be taken is free, and a holder whose name still stands there was killed.

    Attributes:
        stale: the killed session whose lock was taken over; None if there was none.
    """

    def __init__(self, database: Database, *, run_id: str, command: str, remedy: str = "wait for it to end") -> None:
        """`remedy` is what a user can do who is refused."""
        self._database = database
        self._remedy = remedy
        self._lock = own_lock(database.journal_dir / "session.lock")
        self._holder_file = database.journal_dir / "session.json"
        self._holder = Holder(run_id, command, os.getpid(), platform.node(), time.time())
        self.stale: Holder | None = None

    def acquire(self, timeout_s: float, when_waiting: Callable[[str], None]) -> None:
        """Takes the lock.

        Args:
            timeout_s: how long to wait for another session; 0: not at all.
            when_waiting: told whom it waits for, once.

        Raises:
            OpAtlasError: another session has the database, or it cannot be written.
        """
        try:
            self._database.journal_dir.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                if timeout_s:
                    when_waiting(f"waiting up to {timeout_s:g} s for {self._other()}, which has {self._database.path}")
                self._lock.acquire(timeout=timeout_s, poll_interval=_POLL_S)
            self.stale = _read(self._holder_file)
            write_text(self._holder_file, json_line(asdict(self._holder)))
        except OpAtlasError as error:
            self._lock.release()
            if isinstance(error.__cause__, OSError):
                raise OpAtlasError(not_writable(self._database.path, error.__cause__)) from None
            raise
        except Timeout:
            raise OpAtlasError(f"{self._database.path} is in use by {self._other()}: {self._remedy}") from None
        except OSError as error:
            raise OpAtlasError(not_writable(self._database.path, error)) from None

    def release(self) -> None:
        """Gives the lock up, if it was taken."""
        if self._lock.is_locked:
            # Where the journals were removed meanwhile, another session may have written its name there.
            # A file that stays behind names the holder of a lock that nobody holds.
            with suppress(OSError, OpAtlasError):
                if _read(self._holder_file) in (self._holder, None):
                    self._holder_file.unlink()
            self._lock.release()

    def _other(self) -> str:
        holder = _read(self._holder_file)
        return str(holder) if holder else "another session"


def _read(path: Path) -> Holder | None:
    """The holder named in a file; None where there is none, or the file was cut off. Raises UnsafePath."""
    try:
        return decode(read_own(path, _LARGEST_BYTES), Holder, str(path))
    except (OSError, DecodeError):
        return None
