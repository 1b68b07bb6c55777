"""Controls the process of a court from pytest: starts it, gives it a row, and takes its verdict. Imports no torch."""

from __future__ import annotations

import atexit
from functools import lru_cache, partial

from opatlas.outer.judging.judgement import CourtVerdict
from opatlas.row.errors import ReplayError
from opatlas.run.job import Job
from opatlas.run.process.child import Child
from opatlas.run.process.fresh_python import import_paths, module_command
from opatlas.run.process.messages import ChannelBroken, ProcessMessage, Run

#: Longest waits for the process: its start imports torch.
START_TIMEOUT_S, ANSWER_TIMEOUT_S = 300.0, 30.0
_MODULE = "opatlas.outer.judging.court_process"


class RowToJudge(ProcessMessage, frozen=True):
    """A row to judge; `referee` makes the referee of a job ("module:function")."""

    run: Run
    referee: str
    sys_path: tuple[str, ...]


class Leave(ProcessMessage, frozen=True):
    """The candidate's process has ended, or has left the row."""


class Open(ProcessMessage, frozen=True):
    """The court listens in this folder."""

    folder: str


#: The messages of pytest, and those to it.
OF_PYTEST = RowToJudge | Leave
TO_PYTEST = Open | CourtVerdict


class CourtProcess:
    """pytest's control of the process. It runs from the first row to the end of the session."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def begin(self, job: Job, referee: str) -> str:
        """Returns the folder in which the court of a row listens. Raises ReplayError if it does not start."""
        for _ in range(2):
            try:
                if self._child is None:
                    self._child = Child(partial(module_command, _MODULE), {}, TO_PYTEST)
                self._child.channel.send(RowToJudge(Run.of(job), referee, import_paths()))
                answer = self._child.channel.receive(START_TIMEOUT_S, self._child.ends)
            except (EOFError, OSError, ChannelBroken):
                answer = None
            if isinstance(answer, Open):
                return answer.folder
            self.close()
        raise ReplayError("the process that judges results did not start")

    def verdict(self) -> CourtVerdict | None:
        """Returns the verdict on the row; None if the process has ended."""
        assert self._child is not None
        try:
            self._child.channel.send(Leave())
            answer = self._child.channel.receive(ANSWER_TIMEOUT_S, self._child.ends)
        except (EOFError, OSError, ChannelBroken):
            answer = None
        if isinstance(answer, CourtVerdict):
            return answer
        self.close()
        return None

    def close(self) -> None:
        """Ends the process."""
        if self._child is not None:
            self._child.end()
            self._child = None


@lru_cache(maxsize=1)
def court_process() -> CourtProcess:
    """Returns the court of this process."""
    found = CourtProcess()
    atexit.register(found.close)
    return found
