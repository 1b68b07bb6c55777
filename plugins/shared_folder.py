"""The folder that the processes of a session share."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

from opatlas.data.csv_files import write_text
from opatlas.errors import OpAtlasError
from opatlas.files import TemporaryFolder

from .cases import Plan

_PID_SUFFIX = ".pid"


class SharedFolder:
    """A temporary folder in which the processes of a session exchange the plan, process ids and short texts.

    The process that made the folder removes it with `remove`, or with its own end. A folder that a killed session
    left is removed by the next session (opatlas/files.py).
    """

    def __init__(self, existing: Path | None = None) -> None:
        """`existing` is the folder that another process of the session made; None makes a new one."""
        self._made: TemporaryFolder | None = None
        if existing is None:
            self._made = TemporaryFolder("session")
            existing = self._made.path
        self.path = existing

    def write(self, name: str, text: str) -> None:
        """Writes a text under a name, in one step. Raises OpAtlasError where there is no room."""
        write_text(self.path / name, text)

    def read(self, name: str) -> str:
        """Returns the text under a name; "" without a text."""
        file = self.path / name
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def register_worker(self, worker: str) -> None:
        """Writes the process id of this process, which is the worker of that name."""
        self.write(f"{worker}{_PID_SUFFIX}", str(os.getpid()))

    def worker_pids(self) -> list[int]:
        """Returns the process ids of all registered workers; the system may have reused the id of an ended worker."""
        return [int(path.read_text()) for path in self.path.glob(f"*{_PID_SUFFIX}")]

    def publish_plan(self, plan: Plan) -> None:
        """Writes the plan for the workers. Raises OpAtlasError where there is no room."""
        try:
            self._plan_file.write_bytes(pickle.dumps(plan, protocol=pickle.HIGHEST_PROTOCOL))
        except OSError as error:
            raise OpAtlasError(
                f"{self._plan_file} cannot be written ({error.strerror}): make room, or let TMPDIR name another folder"
            ) from None

    def load_plan(self) -> Plan | None:
        """Reads the published plan; None where there is none."""
        if not self._plan_file.exists():
            return None
        plan: Plan = pickle.loads(self._plan_file.read_bytes())
        return plan

    def remove(self) -> None:
        """Removes the folder if this process made it."""
        if self._made is not None:
            self._made.remove()

    @property
    def _plan_file(self) -> Path:
        return self.path / "plan.pickle"
