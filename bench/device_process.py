"""The device process, seen from pytest: started, fed a job at a time, watched, replaced.

Whatever a kernel does to its process (a segfault, a hang in C with the GIL held, an exit, a kill
for memory) costs the one row in flight: the process group is ended and the next row gets a new one.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from bench.errors import DeviceGone
from bench.job import DeviceDescription, DeviceSpec, Job, MeasureSettings, Outcome
from database.schema import Status

#: Importing torch (and torch_npu) from a cold disk takes tens of seconds on busy machines.
_START_TIMEOUT_S = 300.0
#: How long a process that was told to end may take to end by itself.
_END_TIMEOUT_S = 10.0
_ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Start:
    """First message to a device process."""

    spec: DeviceSpec
    settings: MeasureSettings
    sys_path: tuple[str, ...]


@dataclass(frozen=True)
class Ready:
    """Its answer."""

    device: DeviceDescription


@dataclass(frozen=True)
class NotReady:
    """Its answer where the device cannot be opened."""

    reason: str


@dataclass(frozen=True)
class Waiting:
    """Sent when another session's row has the device: waiting for it is not the job's fault."""


@dataclass(frozen=True)
class Started:
    """Sent after that, when the body begins; its deadline runs from here."""


class DeviceProcess:
    """An Executor whose jobs run in a process of their own, started on first use."""

    def __init__(self, spec: DeviceSpec, settings: MeasureSettings, *, case_timeout_s: float) -> None:
        """`case_timeout_s` is the deadline of one row, from its start to its record."""
        self._start_message = Start(spec, settings, tuple(sys.path))
        self._case_timeout_s = case_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._device: DeviceDescription | None = None

    def describe(self) -> DeviceDescription:
        if self._device is None:
            self._open()
        assert self._device is not None
        return self._device

    def run(self, job: Job) -> Outcome:
        connection = self._connection or self._open()
        try:
            connection.send(job)
            limit_s: float | None = self._case_timeout_s
            while True:
                if not connection.poll(limit_s):
                    self._kill()
                    return Outcome(
                        Status.TIMEOUT, f"still running after {self._case_timeout_s:g} s; its process was ended"
                    )
                answer: Waiting | Started | Outcome = connection.recv()
                if isinstance(answer, Outcome):
                    return answer
                limit_s = None if isinstance(answer, Waiting) else self._case_timeout_s
        except (EOFError, OSError):
            return Outcome(Status.CRASHED, f"the device process died: {how_it_ended(self._kill())}")
        except KeyboardInterrupt:
            # Nobody waits for this row any more, and it may have minutes to go.
            self._kill()
            raise

    def close(self) -> None:
        """Lets the process end by itself, then makes it."""
        if self._process is None or self._connection is None:
            return
        self._connection.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._kill()
        self._process = self._connection = None

    def _open(self) -> Connection:
        ours, theirs = socket.socketpair()
        environment = dict(os.environ)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_ROOT), environment.get("PYTHONPATH"))))
        with theirs:
            # Output is inherited, so that it lands where pytest's capture wants it, or on the terminal with -s.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench.device_main", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=environment,
                start_new_session=True,
            )
        self._connection = Connection(ours.detach())
        answer: Ready | NotReady | None = None
        try:
            self._connection.send(self._start_message)
            if self._connection.poll(_START_TIMEOUT_S):
                answer = self._connection.recv()
            reason = f"it was not ready after {_START_TIMEOUT_S:g} s"
        except (EOFError, OSError):
            reason = "it ended before it was ready"
        if isinstance(answer, Ready):
            self._device = answer.device
            return self._connection
        if answer is not None:
            reason = answer.reason
        code = self._kill()
        raise DeviceGone(
            f"the {self._start_message.spec.kind} device process did not start: {reason} ({how_it_ended(code)}); "
            f"--in-process shows what happens there"
        )

    def _kill(self) -> int:
        """Ends the whole process group, waits for it, and gives the exit code of the process."""
        assert self._process is not None
        try:
            # An answer may still come from a process that is ending by itself: its code says more.
            code = self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            code = None
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            # Everybody in the group is gone already.
            code = self._process.wait()
        code = self._process.wait() if code is None else code
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None
        return code


def how_it_ended(exit_code: int) -> str:
    """`-11` is "SIGSEGV (signal 11)", `3` is "exit code 3"."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"{signal.Signals(-exit_code).name} (signal {-exit_code})"
    except ValueError:
        return f"signal {-exit_code}"
