"""The folder in which the processes of a session leave word for each other."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

from opatlas.errors import OpAtlasError
from opatlas.files import TemporaryFolder
from opatlas.store.csv_files import write_text

from .plan import Plan

_PID_SUFFIX = ".pid"


class SharedFolder:
    """A folder among the temporary files: who is to stop and why, which processes are workers, and the plan of all.

    The process that makes one holds it until `remove`, or its own end. The plan of a session may be large: what a
    killed session has left goes with the next one (opatlas/files.py).
    """

    def __init__(self, joined: Path | None = None) -> None:
        """`joined` is where the process that made it says that it is; None makes one."""
        self._made: TemporaryFolder | None = None
        if joined is None:
            self._made = TemporaryFolder("session")
            joined = self._made.path
        self.path = joined

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
        if self._made is not None:
            self._made.remove()

    @property
    def _plan_file(self) -> Path:
        return self.path / "plan.pickle"
