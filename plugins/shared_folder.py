"""The folder in which the processes of a session leave word for each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

_PREFIX = "opatlas-session-"
#: One that is younger may not be held yet.
_ABANDONED_AFTER_S = 60.0


class SharedFolder:
    """A new folder among the temporary files, held until `remove` or the end of this process.

    A process that is killed leaves its folder behind, with the plan of the session, which is large
    for a large database. Whoever makes the next one removes it.
    """

    def __init__(self) -> None:
        _remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._held = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._held, fcntl.LOCK_SH)

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._held)


def _remove_abandoned() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # Raised for what is somebody else's, a link, or held.
        with contextlib.suppress(OSError):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if time.time() - os.fstat(folder).st_mtime > _ABANDONED_AFTER_S:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
            finally:
                os.close(folder)
