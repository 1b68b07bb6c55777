"""Controls a device process from pytest: starts it, sends it one job at a time, and replaces it after a failure.

Whatever a kernel does to its process (a segfault, a hang in C with the GIL held, an exit, a kill for lack of memory, a
fatal device error) affects only the current row: the process group is ended, and the next row gets a new process, whose
device is probed first.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from typing import Protocol

from opatlas.row.errors import DeviceGone
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceSpec, device_environment
from opatlas.run.devices.device_lock import DeviceWaits, LockWait
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, RowOutcome
from opatlas.run.process.channel import Answer, Channel, ChannelBroken, LockTaken, NotReady, Ready, Start, Waiting
from opatlas.run.process.child import (
    PAUSES_S,
    TRIES,
    ChildExecutor,
    describe_exit,
    end,
    memory_kills,
    open_pidfd,
    print_to_stderr,
    start,
    write_stacks,
)
from opatlas.run.process.fresh_python import import_paths, module_command

#: Maximum time that a process takes to start. Imports of torch (and torch_npu) from a cold disk take tens of seconds.
_START_TIMEOUT_S = 300.0
#: Maximum time that a process takes to end after its connection was closed: torch's cleanup takes a while.
_END_TIMEOUT_S = 10.0
#: The same for a process under a launcher, whose libraries a profiler has hooked.
PROFILED_END_TIMEOUT_S = 60.0
#: Maximum time between the end of a connection and the end of its process, after which the exit code is known.
_LAST_WORDS_S = 0.2
#: Last word on the command line of a device process whose parent is not its keeper.
UNDER_LAUNCHER = "--under-launcher"


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


class DeviceProcess(ChildExecutor):
    """An Executor that runs jobs in a process of their own, started on first use."""

    def __init__(
        self,
        spec: DeviceSpec,
        settings: MeasureSettings,
        launcher: Launcher | None = None,
        waits: DeviceWaits | None = None,
    ) -> None:
        """
        Args:
            spec: the device.
            settings: how rows are measured.
            launcher: the program under which the process runs; None: no program.
            waits: measures the waits for the device; None: the waits are only shown to the user.
        """
        super().__init__()
        self._launcher = launcher
        self._waits = waits or DeviceWaits(print_to_stderr)
        self._start_message = Start(spec, settings, import_paths())
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        #: The process itself, which a keeper, and perhaps a launcher, has started.
        self._device_pid: int | None = None
        #: Readable when the process has ended (`open_pidfd`).
        self._pidfd: int | None = None
        self._memory_kills = 0

    def run(self, job: Job) -> RowOutcome:
        with self._end_if_interrupted, self._waits:
            for attempt in range(TRIES):
                channel = self._channel or self._open()
                try:
                    self._expect_idle(channel)
                    channel.send(job)
                except (ChannelBroken, EOFError, OSError) as error:
                    code = self._kill(0.0 if isinstance(error, ChannelBroken) else _LAST_WORDS_S)
                    continue
                try:
                    outcome = self._await(channel, job)
                except ConnectionResetError:
                    # The process died before it received the job, so the row is not the cause.
                    code = self._kill(_LAST_WORDS_S)
                    continue
                except ChannelBroken as broken:
                    self._kill()
                    if isinstance(broken, _LateAnswer) and attempt == 0:
                        # A leftover process of an earlier row sent the answer.
                        continue
                    return RowOutcome(Status.CRASHED, f"{broken}: the device process was ended")
                except (EOFError, OSError):
                    code = self._kill(_END_TIMEOUT_S)
                    return RowOutcome(Status.CRASHED, f"the device process {self._describe_end(code)}", exit_code=code)
                if outcome.status is Status.DEVICE_ERROR:
                    # Every later call in this process would fail.
                    channel.close()
                    self._kill(_LAST_WORDS_S)
                elif outcome.changed or outcome.ends_process:
                    # The next row must not be measured in the changed state.
                    self.close()
                return outcome
        raise DeviceGone(f"its process {self._describe_end(code)} before it took a row, {TRIES} times")

    def close(self) -> None:
        """Waits until the process ends, or ends the process after a limit; then ends all its descendants."""
        if self._channel is not None:
            self._channel.close()
        self._kill(_END_TIMEOUT_S)

    def _await(self, channel: Channel, job: Job) -> RowOutcome:
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
            answer = channel.receive(job.timeout_s if waiting is None else waiting.left_s(), self._pidfd)
            if answer is None and waiting is not None:
                waiting.check_limit()
                continue
            if answer is None:
                if self._device_pid is not None:
                    write_stacks(self._device_pid)
                self._kill()
                return RowOutcome(
                    Status.TIMEOUT, f"still running after {job.timeout_s:g} s (--case-timeout); its process was ended"
                )
            if isinstance(answer, Answer) and answer.job_id < job.id:
                raise _LateAnswer("an answer to an earlier row came over the connection")
            if not isinstance(answer, Answer) or answer.job_id != job.id:
                raise ChannelBroken("an unexpected answer came over the connection")
            if isinstance(answer.content, RowOutcome):
                return answer.content
            if not isinstance(answer.content, (Waiting, LockTaken)):
                raise ChannelBroken(f"an answer of the type {type(answer.content).__name__} came over the connection")
            if waiting is not None:
                waiting.end()
            waiting = self._waits.begin(answer.content.holder) if isinstance(answer.content, Waiting) else None

    def _expect_idle(self, channel: Channel) -> None:
        """Checks that the process waits for a job.

        Raises:
            EOFError: the process has ended or is ending.
            ChannelBroken: the process sent an unexpected message.
        """
        if self._process is not None and self._process.poll() is not None:
            raise EOFError
        if self._pidfd is not None and wait([self._pidfd], 0):
            raise EOFError
        if not channel.is_silent():
            raise ChannelBroken("an unexpected answer came over the connection")

    def _is_open(self) -> bool:
        return self._channel is not None

    def _open(self) -> Channel:
        """Starts a process and waits until its device passes the probe. Raises DeviceGone after the last attempt."""
        for pause_s in (*PAUSES_S, 0.0):
            answer = self._start()
            if isinstance(answer, Ready):
                assert self._channel is not None
                self._device = answer.device
                return self._channel
            failure = answer or NotReady(f"it ended before it was ready, {TRIES} times", unhealthy=False)
            how = f" (it {self._describe_end(self._kill(_END_TIMEOUT_S))})" if answer is None else ""
            self._kill()
            if answer is not None and not answer.unhealthy and self._device is None:
                # The device has never been available: further attempts are useless.
                break
            time.sleep(pause_s)
        spec = self._start_message.spec
        if failure.unhealthy:
            raise DeviceGone(f"{spec} failed its probe {TRIES} times, each in a fresh process: {failure.reason}")
        raise DeviceGone(f"the {spec} device process did not start: {failure.reason}{how}")

    def _start(self) -> Ready | NotReady | None:
        """Starts a process and returns its first answer; None if the process ended without an answer."""
        self._memory_kills = memory_kills()
        try:
            self._process, self._channel = start(self._command, device_environment(self._start_message.spec))
        except OSError as error:
            return NotReady(f"no process can be started: {error}", unhealthy=False)
        self._watch(self._process.pid)
        try:
            self._channel.send(self._start_message)
            answer = self._channel.receive(_START_TIMEOUT_S, self._pidfd)
        except ChannelBroken as broken:
            return NotReady(str(broken), unhealthy=False)
        except (EOFError, OSError):
            return None
        if answer is None:
            return NotReady(f"it was not ready after {_START_TIMEOUT_S:g} s", unhealthy=False)
        if isinstance(answer, Ready):
            self._device_pid = answer.pid
            if self._launcher:
                # The profiler ends later than the process.
                self._watch(answer.pid)
        return answer if isinstance(answer, (Ready, NotReady)) else NotReady("it sent a wrong answer", unhealthy=False)

    def _command(self, fd: str) -> list[str]:
        words = module_command("opatlas.run.process.device_main", fd)
        return self._launcher.command([*words, UNDER_LAUNCHER]) if self._launcher else words

    def _watch(self, pid: int) -> None:
        """Watches for the end of a process, and no longer for the end of an earlier process."""
        if self._pidfd is not None:
            os.close(self._pidfd)
        self._pidfd = open_pidfd(pid)

    def _kill(self, patience_s: float = 0.0) -> int | None:
        """Ends the process with all its descendants, and waits for their end.

        Args:
            patience_s: time in seconds for the process to end by itself, so that its exit code is known and a profiler
                can write its records.

        Returns:
            The exit code; None if the process had to be ended.
        """
        code = None
        if self._process is not None:
            if patience_s and self._launcher:
                patience_s = self._launcher.patience_s if self._has_ended(PROFILED_END_TIMEOUT_S) else 0.0
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(patience_s)
            end(self._process)
        if self._channel is not None:
            self._channel.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
        self._process = self._channel = self._pidfd = self._device_pid = None
        return code

    def _has_ended(self, within_s: float) -> bool:
        """Returns whether the device process, without its launcher, ends in time; True if the system does not say."""
        return self._pidfd is None or bool(wait([self._pidfd], within_s))

    def _describe_end(self, code: int | None) -> str:
        if code is None:
            return "closed its connection and was ended"
        for_memory = code == -signal.SIGKILL and memory_kills() > self._memory_kills
        return f"died: {describe_exit(code)}" + (", killed by the system for lack of memory" if for_memory else "")
