"""The device process, seen from pytest: started, fed a job at a time, watched, replaced.

Whatever a kernel does to its process (a segfault, a hang in C with the GIL held, an exit, a kill
for memory, a device context that answers every call with the same error) costs the one row in
flight: the process group is ended, and the next row gets a new one on a device that has been tried.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Protocol

from bench.devices.visible import environment_of
from bench.errors import DeviceGone
from bench.job import DeviceDescription, DeviceSpec, Job, MeasureSettings, Outcome
from bench.processes.child import PAUSES_S, TRIES, how_it_ended, memory_kills, open_end, start
from bench.processes.device_messages import NotReady, Ready, Start, Started, Waiting
from bench.processes.fresh_python import import_paths, module_command
from database.schema import Status

#: Importing torch (and torch_npu) from a cold disk takes tens of seconds on busy machines.
_START_TIMEOUT_S = 300.0
#: How long a process that was told to end may take to end by itself.
_END_TIMEOUT_S = 10.0
#: What a process has sent or not read before its end is seen within this time after it.
_LAST_WORDS_S = 0.2
#: Last word on the command line of a device process whose parent is not its keeper.
UNDER_LAUNCHER = "--under-launcher"


class Launcher(Protocol):
    """A program that a device process runs under, such as a profiler.

    Attributes:
        patience_s: how long it may take to end when the process has ended.
    """

    patience_s: float

    def command(self, words: Sequence[str]) -> list[str]:
        """The command that runs `words` under it, asked for at each start. Raises DeviceGone."""
        ...


class DeviceProcess:
    """An Executor whose jobs run in a process of their own, started on first use."""

    def __init__(self, spec: DeviceSpec, settings: MeasureSettings, launcher: Launcher | None = None) -> None:
        self._launcher = launcher
        #: How long a process group that ends by itself may take to do so.
        self._patience_s = launcher.patience_s if launcher else _LAST_WORDS_S
        self._start_message = Start(spec, settings, import_paths())
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        #: See `open_end`.
        self._end: int | None = None
        self._device: DeviceDescription | None = None
        self._memory_kills = 0

    def describe(self) -> DeviceDescription:
        if self._device is None:
            self._open()
        assert self._device is not None
        return self._device

    def run(self, job: Job) -> Outcome:
        for _ in range(TRIES):
            connection = self._connection or self._open()
            try:
                self._expect_alive()
                connection.send(job)
                outcome = self._await(connection, job)
            except (BrokenPipeError, ConnectionResetError):
                # The process died before it took the job: the row is not to blame.
                code = self._kill(self._patience_s)
                continue
            except (EOFError, OSError):
                code = self._kill(self._patience_s)
                return Outcome(Status.CRASHED, f"the device process died: {self._how_it_ended(code)}")
            except KeyboardInterrupt:
                # Nobody waits for this row any more, and it may have minutes to go.
                self._kill()
                raise
            if outcome.status is Status.DEVICE_ERROR:
                # Every later call in that process would fail.
                connection.close()
                self._kill(self._patience_s)
            return outcome
        raise DeviceGone(f"its process died before it took a row, {TRIES} times ({self._how_it_ended(code)})")

    def close(self) -> None:
        """Lets the process end by itself, then makes it, and whatever kernels have left running."""
        if self._process is None or self._connection is None:
            return
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(max(_END_TIMEOUT_S, self._patience_s))
        self._kill()

    def _await(self, connection: Connection, job: Job) -> Outcome:
        """Raises EOFError where the process died of the job, ConnectionResetError where it died without it."""
        limit_s: float | None = job.timeout_s
        while True:
            if not self._message_comes(limit_s):
                self._kill()
                return Outcome(Status.TIMEOUT, f"still running after {job.timeout_s:g} s; its process was ended")
            answer: Waiting | Started | Outcome = connection.recv()
            if isinstance(answer, Outcome):
                return answer
            limit_s = None if isinstance(answer, Waiting) else job.timeout_s

    def _expect_alive(self) -> None:
        """Raises BrokenPipeError where the process has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise BrokenPipeError
        if self._end is not None and wait([self._end], 0):
            raise BrokenPipeError

    def _message_comes(self, limit_s: float | None) -> bool:
        """Whether there is a message in time, or the connection is closed. Raises EOFError where the process ended."""
        assert self._connection is not None
        ready = wait([self._connection, *([] if self._end is None else [self._end])], limit_s)
        if ready and self._connection not in ready and not self._connection.poll(_LAST_WORDS_S):
            raise EOFError
        return bool(ready)

    def _open(self) -> Connection:
        """Starts a process whose device computes what it should. Raises DeviceGone after the last try."""
        for pause_s in (*PAUSES_S, 0.0):
            answer = self._start()
            if isinstance(answer, Ready):
                assert self._connection is not None
                self._device = answer.device
                return self._connection
            failure = answer or NotReady(f"it ended before it was ready, {TRIES} times", sick=False)
            how = self._how_it_ended(self._kill())
            if answer is not None and not answer.sick and self._device is None:
                # It never was there: trying again will not bring it.
                break
            time.sleep(pause_s)
        spec = self._start_message.spec
        if failure.sick:
            raise DeviceGone(f"{spec} failed its probe {TRIES} times, each in a fresh process: {failure.reason}")
        raise DeviceGone(
            f"the {spec} device process did not start: {failure.reason} ({how}); --in-process shows what happens there"
        )

    def _start(self) -> Ready | NotReady | None:
        """Starts a process; gives its answer, None where it ended without one."""
        self._memory_kills = memory_kills()
        self._process, self._connection = start(self._command, environment_of(self._start_message.spec))
        self._watch(self._process.pid)
        try:
            self._connection.send(self._start_message)
            if self._message_comes(_START_TIMEOUT_S):
                answer: Ready | NotReady = self._connection.recv()
                if self._launcher and isinstance(answer, Ready):
                    # A profiler goes on after the end of what it has started.
                    self._watch(answer.pid)
                return answer
            return NotReady(f"it was not ready after {_START_TIMEOUT_S:g} s", sick=False)
        except (EOFError, OSError):
            return None

    def _command(self, fd: str) -> list[str]:
        words = module_command("bench.processes.device_main", fd)
        return self._launcher.command([*words, UNDER_LAUNCHER]) if self._launcher else words

    def _watch(self, pid: int) -> None:
        """From now on this process's end is the end."""
        if self._end is not None:
            os.close(self._end)
        self._end = open_end(pid)

    def _kill(self, patience_s: float = _LAST_WORDS_S) -> int:
        """Ends the whole process group, waits for it, and gives the exit code of the process.

        Args:
            patience_s: how long one that is ending by itself may take: its code says more, and a
                profiler has yet to write what it recorded.
        """
        assert self._process is not None
        try:
            code = self._process.wait(patience_s)
        except subprocess.TimeoutExpired:
            code = None
        with contextlib.suppress(ProcessLookupError):
            # Raised where everybody in the group is gone already.
            os.killpg(self._process.pid, signal.SIGKILL)
        code = self._process.wait() if code is None else code
        if self._connection is not None:
            self._connection.close()
        if self._end is not None:
            os.close(self._end)
        self._process = self._connection = self._end = None
        return code

    def _how_it_ended(self, code: int) -> str:
        for_memory = code == -signal.SIGKILL and memory_kills() > self._memory_kills
        return how_it_ended(code) + (", killed by the system for want of memory" if for_memory else "")
