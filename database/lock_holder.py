"""Who holds a lock: of a database, or of a device. Nothing that reads tables, for device processes import it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta


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
