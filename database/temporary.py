"""Folders among the temporary files that do not stay for ever when the process which made one is killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

_PREFIX = "opatlas-tmp-"
#: A younger folder may not be held yet.
_ABANDONED_AFTER_S = 60.0


class TemporaryFolder:
    """A new folder, which the process that makes it holds until `remove`, or until its own end.

    If the process is killed, the folder stays, and whoever makes the next one removes it.
    """

    def __init__(self, purpose: str) -> None:
        """`purpose` is part of the name. Raises OSError if there is no room for a folder."""
        _remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
        self._held: int | None = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._held, fcntl.LOCK_SH)

    def remove(self) -> None:
        """Removes the folder with all that is in it. A second call does nothing."""
        if self._held is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._held)
            self._held = None

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()


def _remove_abandoned() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        # OSError: the folder is somebody else's, a link, or held.
        with contextlib.suppress(OSError):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if time.time() - os.fstat(folder).st_mtime > _ABANDONED_AFTER_S:
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)
            finally:
                os.close(folder)
