"""Controls a device process from pytest: starts it, sends it one job at a time, and replaces it after a failure.

Whatever a kernel does to its process (a segfault, a hang in C with the GIL held, an exit, a kill for lack of memory, a
fatal device error) affects only the current row: the process group is ended, and the next row gets a new process, whose
device is probed first.
"""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from opatlas.row.errors import DeviceGone
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription, DeviceSpec, device_environment
from opatlas.run.devices.device_lock import DeviceWaits, LockWait
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, ProcessDied, RanTooLong, RowOutcome
from opatlas.run.process.child import (
    PAUSES_S,
    TRIES,
    UNDER_LAUNCHER,
    Child,
    EndIfInterrupted,
    print_to_stderr,
    readable,
    write_stacks,
)
from opatlas.run.process.fresh_python import import_paths, module_command
from opatlas.run.process.messages import ChannelBroken, Finished, LockTaken, NotReady, OfJob, Ready, Run, Start, Waiting
from opatlas.run.scheduler import InTurn

#: Maximum time that a process takes to start. Imports of torch (and torch_npu) from a cold disk take tens of seconds.
_START_TIMEOUT_S = 300.0
#: Maximum time that a process takes to end after its connection was closed: torch's cleanup takes a while.
_END_TIMEOUT_S = 10.0
#: The same for a process under a launcher, whose libraries a profiler has hooked.
PROFILED_END_TIMEOUT_S = 60.0
#: Maximum time between the end of a connection and the end of its process, after which the exit code is known.
_LAST_WORDS_S = 0.2


class Launcher(Protocol):
    """A program under which a device process runs, such as a profiler.

    Attributes:
        patience_s: maximum time in seconds between the end of the process and the end of the launcher.
    """

    patience_s: float

    def command(self, words: Sequence[str]) -> list[str]:
        """Returns the command that runs `words` under the launcher; called at each start. Raises DeviceGone."""
        ...


class _LateAnswer(ChannelBroken):
    """An answer to an earlier job arrived."""


class Opened(InTurn):
    """A scheduler whose processes are started when they are needed, and ended where a wait for them is interrupted."""

    def __init__(self, waits: DeviceWaits | None) -> None:
        """`waits` times the waits for devices, and shows the user lines; None: lines go to stderr."""
        super().__init__()
        self._waits = waits or DeviceWaits(print_to_stderr)
        #: The description of the device, since the processes were started first.
        self._device: DeviceDescription | None = None
        self._end_if_interrupted = EndIfInterrupted(self._kill)

    def describe(self) -> DeviceDescription:
        if self._device is None:
            self._open_now()
        assert self._device is not None
        return self._device

    def prepare(self) -> None:
        if not self._is_open():
            self._open_now()

    def _open_now(self) -> None:
        with self._end_if_interrupted:
            self._open()

    @abstractmethod
    def _is_open(self) -> bool:
        """Returns whether the processes run."""

    @abstractmethod
    def _open(self) -> object:
        """Starts the processes, and sets the description of the device. Raises DeviceGone."""

    @abstractmethod
    def _kill(self) -> object:
        """Ends the processes, if any."""


class DeviceProcess(Opened):
    """Runs jobs in a process of their own, started on first use."""

    def __init__(
        self,
        spec: DeviceSpec,
        settings: MeasureSettings,
        launcher: Launcher | None = None,
        waits: DeviceWaits | None = None,
    ) -> None:
        """`launcher` is the program under which the process runs; None: no program."""
        super().__init__(waits)
        self._launcher = launcher
        self._spec = spec
        self._settings = settings
        self._child: Child | None = None
        #: Whether the process has opened its device.
        self._is_ready = False
        self._exit_code: int | None = None
        #: The process of jobs that run elsewhere, once there was one.
        self._other: DeviceProcess | None = None

    def begin(self) -> None:
        with self._end_if_interrupted, contextlib.suppress(OSError, DeviceGone):
            # A failure is reported when the device is opened.
            if self._child is None:
                self._spawn()

    def _run(self, job: Job) -> RowOutcome:
        if job.elsewhere:
            return self._run_elsewhere(job)
        with self._end_if_interrupted, self._waits:
            for attempt in range(TRIES):
                child = self._child if self._child is not None and self._is_ready else self._open()
                try:
                    self._expect_idle(child)
                    child.channel.send(Run.of(job))
                except (ChannelBroken, EOFError, OSError) as error:
                    how = self._kill(0.0 if isinstance(error, ChannelBroken) else _LAST_WORDS_S)
                    continue
                try:
                    with child.used():
                        outcome = self._await(child, job)
                except ConnectionResetError:
                    # The process died before it received the job, so the row is not the cause.
                    how = self._kill(_LAST_WORDS_S)
                    continue
                except ChannelBroken as broken:
                    self._kill()
                    if isinstance(broken, _LateAnswer) and attempt == 0:
                        # A leftover process of an earlier row sent the answer.
                        continue
                    raise ProcessDied(f"{broken}: the device process was ended") from None
                except (EOFError, OSError):
                    how = self._kill(_END_TIMEOUT_S)
                    raise ProcessDied(f"the device process {how}", self._exit_code) from None
                if outcome.status is Status.DEVICE_ERROR:
                    # Every later call in this process would fail.
                    child.channel.close()
                    self._kill(_LAST_WORDS_S)
                elif outcome.changed or outcome.ends_process or job.is_alone:
                    # The next row must not be measured in the changed state.
                    self.close()
                return outcome
        raise DeviceGone(f"its process {how} before it took a row, {TRIES} times")

    def _run_elsewhere(self, job: Job) -> RowOutcome:
        """Runs a job in the other process. Raises ReplayError if it is lost, or the device takes one process alone."""
        if self._other is None:
            self._other = DeviceProcess(self._spec, self._settings, self._launcher, self._waits)
        try:
            return self._other._run(replace(job, elsewhere=False))
        except DeviceGone as error:
            raise ProcessDied(f"the device has no other process: {error}") from None

    def release(self) -> None:
        # The next job would get a new process.
        if self._child is not None:
            self._child.channel.close()
        if self._other is not None:
            self._other.release()

    def close(self) -> None:
        """Waits until the process ends, or ends the process after a limit; then ends all its descendants."""
        if self._other is not None:
            self._other.close()
        if self._child is not None:
            self._child.channel.close()
        self._kill(_END_TIMEOUT_S if self._is_ready else 0.0)

    def _await(self, child: Child, job: Job) -> RowOutcome:
        """Waits for the outcome of a job.

        Raises:
            EOFError: the process died during the job.
            ConnectionResetError: the process died before it received the job.
            _LateAnswer: an answer to an earlier job arrived.
            ChannelBroken: a message that is not an answer to this job arrived.
            DeviceGone: another session holds the device for too long.
        """
        waiting: LockWait | None = None
        while True:
            answer = child.channel.receive(job.timeout_s if waiting is None else waiting.left_s(), child.ends)
            if answer is None and waiting is not None:
                waiting.check_limit()
                continue
            if answer is None:
                if child.pid is not None:
                    write_stacks(child.pid)
                self._kill()
                raise RanTooLong(f"still running after {job.timeout_s:g} s (--case-timeout); its process was ended")
            if isinstance(answer, OfJob) and answer.job_id < job.id:
                raise _LateAnswer("an answer to an earlier row came over the connection")
            if not isinstance(answer, (Finished, Waiting, LockTaken)) or answer.job_id != job.id:
                raise ChannelBroken("an unexpected answer came over the connection")
            if isinstance(answer, Finished):
                return answer.whole
            if waiting is not None:
                waiting.end()
            waiting = self._waits.begin(answer.holder) if isinstance(answer, Waiting) else None

    def _expect_idle(self, child: Child) -> None:
        """Checks that the process waits for a job.

        Raises:
            EOFError: the process has ended or is ending.
            ChannelBroken: the process sent an unexpected message.
        """
        if child.has_ended or readable(child.ends, 0):
            raise EOFError
        if not child.channel.is_silent():
            raise ChannelBroken("an unexpected answer came over the connection")

    def _is_open(self) -> bool:
        return self._is_ready

    def _open(self) -> Child:
        """Starts a process and waits until its device passes the probe. Raises DeviceGone after the last attempt."""
        for pause_s in (*PAUSES_S, 0.0):
            answer = self._start()
            if isinstance(answer, Ready):
                assert self._child is not None
                self._device, self._is_ready = answer.device, True
                return self._child
            failure = answer or NotReady(f"it ended before it was ready, {TRIES} times")
            how = f" (it {self._kill(_END_TIMEOUT_S)})" if answer is None else ""
            self._kill()
            if answer is not None and not answer.unhealthy and self._device is None:
                # The device has never been available: further attempts are useless.
                break
            time.sleep(pause_s)
        if failure.unhealthy:
            raise DeviceGone(f"{self._spec} failed its probe {TRIES} times, each in a fresh process: {failure.reason}")
        raise DeviceGone(f"the {self._spec} device process did not start: {failure.reason}{how}")

    def _spawn(self) -> Child:
        """Starts a process, which imports torch and waits for its device. Raises OSError, DeviceGone."""
        self._child = Child(self._command, device_environment(self._spec))
        return self._child

    def _start(self) -> Ready | NotReady | None:
        """Starts a process, if none has begun, and returns its first answer; None if it ended without an answer."""
        try:
            child = self._child or self._spawn()
        except OSError as error:
            return NotReady(f"no process can be started: {error}")
        try:
            # Not before: the collection of pytest may add to the path.
            child.channel.send(Start(self._spec, self._settings, import_paths()))
            answer = child.channel.receive(_START_TIMEOUT_S, child.ends)
        except ChannelBroken as broken:
            return NotReady(str(broken))
        except (EOFError, OSError):
            return None
        if answer is None:
            return NotReady(f"it was not ready after {_START_TIMEOUT_S:g} s")
        if isinstance(answer, Ready):
            child.opened(answer.pid)
        return answer if isinstance(answer, (Ready, NotReady)) else NotReady("it sent a wrong answer")

    def _command(self, fd: str) -> list[str]:
        words = module_command("opatlas.run.process.device_main", fd)
        return self._launcher.command([*words, UNDER_LAUNCHER]) if self._launcher else words

    def _kill(self, patience_s: float = 0.0) -> str:
        """Ends the process with all its descendants, and waits for their end.

        Args:
            patience_s: time in seconds for the process to end by itself, so that its exit code is known and a profiler
                can write its records.

        Returns:
            How it ended; its code is then `_exit_code`.
        """
        how = ""
        if self._child is not None:
            if patience_s and self._launcher:
                ended = self._child.wait_for_end(PROFILED_END_TIMEOUT_S)
                patience_s = self._launcher.patience_s if ended else 0.0
            self._exit_code = self._child.end(patience_s)
            how = self._child.describe_end(self._exit_code)
        self._child = None
        self._is_ready = False
        return how
