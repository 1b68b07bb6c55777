"""The folder in which the processes of a session leave word for each other."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pickle
import shutil
import tempfile
import time
from pathlib import Path

from database.errors import OpAtlasError
from database.store import write_text
from plugins.plan import Plan

_PREFIX = "opatlas-session-"
_PID_SUFFIX = ".pid"
#: One that is younger may not be held yet.
_ABANDONED_AFTER_S = 60.0


class SharedFolder:
    """A folder among the temporary files: who is to stop and why, which processes are workers, and the plan of all.

    The process that makes one holds it until `remove`, or its own end. If it is killed it leaves the folder
    behind, with the plan of the session, which is large for a large database. Whoever makes the next one removes it.
    """

    def __init__(self, joined: Path | None = None) -> None:
        """`joined` is where the process that made it says that it is; None makes one."""
        self._held: int | None = None
        if joined is not None:
            self.path = joined
            return
        _remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        self._held = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._held, fcntl.LOCK_SH)

    def leave(self, name: str, text: str) -> None:
        """Leaves word under a name, to be read whole or not at all. Raises OpAtlasError where there is no room."""
        write_text(self.path / name, text)

    def word(self, name: str) -> str:
        """What was left under a name; "" where nothing was."""
        file = self.path / name
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def enter_worker(self, worker: str) -> None:
        """Leaves the process id of a worker, which is this process."""
        self.leave(f"{worker}{_PID_SUFFIX}", str(os.getpid()))

    def workers(self) -> list[int]:
        """The process ids of all workers that have entered; one that has ended may have left its to somebody else."""
        return [int(path.read_text()) for path in self.path.glob(f"*{_PID_SUFFIX}")]

    def hand(self, plan: Plan) -> None:
        """Leaves the plan for workers. Raises OpAtlasError where there is no room."""
        try:
            self._plan_file.write_bytes(pickle.dumps(plan, protocol=pickle.HIGHEST_PROTOCOL))
        except OSError as error:
            raise OpAtlasError(
                f"{self._plan_file} cannot be written ({error.strerror}): make room, or let TMPDIR name another folder"
            ) from None

    def handed(self) -> Plan | None:
        """The plan that was left; None where there is none."""
        if not self._plan_file.exists():
            return None
        plan: Plan = pickle.loads(self._plan_file.read_bytes())
        return plan

    def remove(self) -> None:
        """Removes the folder, where this process has made it."""
        if self._held is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._held)
            self._held = None

    @property
    def _plan_file(self) -> Path:
        return self.path / "plan.pickle"


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
