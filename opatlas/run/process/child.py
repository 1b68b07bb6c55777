"""Starts and ends a process so that neither the process nor its descendants outlive pytest; describes its end."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from opatlas.run.devices.device import DeviceDescription
from opatlas.run.devices.system import read_text
from opatlas.run.process.channel import Channel
from opatlas.run.process.fresh_python import import_environment, module_command
from opatlas.run.process.keeper import END, END_TIMEOUT_S
from opatlas.text import printable_lines

#: Pauses between attempts to start a process, in seconds: a driver may need time to reset a device.
PAUSES_S = (1.0, 4.0)
TRIES = len(PAUSES_S) + 1
#: Time that a keeper may take to end on a loaded machine, besides that of its descendants.
_KEEPER_TIMEOUT_S = 10.0
#: Asks a process for its stacks, which takes faulthandler so many seconds to write.
_SHOW_STACKS = signal.SIGUSR1
_STACKS_S = 0.2


def start(
    command_of: Callable[[str], Sequence[str]], environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], Channel]:
    """Starts a process under a keeper (opatlas/run/process/keeper.py) in a process group of its own.

    The process inherits stdout and stderr: pytest captures the output, or shows the output with -s.

    Args:
        command_of: returns the command, given the descriptor of the process's end of the channel.
        environment: variables in addition to those of this process.

    Returns:
        The keeper, and the channel to the process.

    Raises:
        OSError: the system cannot start the process, for instance because too many processes exist.
    """
    ours, theirs = socket.socketpair()
    channel, fd = Channel(ours), str(theirs.fileno())
    try:
        process = subprocess.Popen(
            module_command("opatlas.run.process.keeper", str(os.getpid()), fd, *command_of(fd)),
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**import_environment(), **environment},
            start_new_session=True,
        )
    except BaseException:
        channel.close()
        raise
    finally:
        theirs.close()
    return process, channel


class EndIfInterrupted:
    """A context around the use of a process, which ends the process if an exception leaves the context.

    Otherwise a late answer of the process would count as the answer to the next message. The exception is a second
    Ctrl-C, a timeout of pytest-timeout, or an error in OpAtlas.
    """

    def __init__(self, end_process: Callable[[], object]) -> None:
        self._end_process = end_process
        self._entered = False

    def __enter__(self) -> None:
        if self._entered:
            # An earlier attempt to end the process was interrupted.
            self._end_process()
        self._entered = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._end_process()
        self._entered = False


class ChildExecutor(ABC):
    """The part that executors with processes share: describes their device, and starts them when they are needed."""

    def __init__(self) -> None:
        #: The description of the device, since the processes were started first.
        self._device: DeviceDescription | None = None
        self._end_if_interrupted = EndIfInterrupted(self._kill)

    def describe(self) -> DeviceDescription:
        """Returns the device's description; starts the processes if they never ran. Raises DeviceGone."""
        if self._device is None:
            with self._end_if_interrupted:
                self._open()
        assert self._device is not None
        return self._device

    def prepare(self) -> None:
        """Starts the processes if they do not run. Raises DeviceGone."""
        if not self._is_open():
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


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process of `start` with all its descendants, and waits for their end."""
    for number in (END, signal.SIGCONT):
        # SIGCONT continues a stopped keeper.
        process.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_TIMEOUT_S + _KEEPER_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        # If a kernel has killed the keeper, processes of its group may be left.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def write_stacks(pid: int) -> None:
    """Makes a process that has called `show_stacks` write the stacks of its threads to stderr, and waits for them."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, _SHOW_STACKS)
    time.sleep(_STACKS_S)


def show_stacks() -> None:
    """Makes this process write its stacks to stderr when it crashes, and when `write_stacks` asks for them."""
    faulthandler.enable()
    faulthandler.register(_SHOW_STACKS, all_threads=True)


def print_to_stderr(text: str) -> None:
    """Shows a line to the user on stderr."""
    print(printable_lines(f"opatlas: {text}"), file=sys.stderr, flush=True)


def open_pidfd(pid: int) -> int | None:
    """Returns a descriptor that becomes readable when the process ends; None if the system has no pidfds.

    The caller closes the descriptor. A connection to the process does not always show the end of the process, because
    forks of a kernel, or a launcher, may hold the connection open.
    """
    with contextlib.suppress(AttributeError, OSError):
        # Fails on old Linux and on other systems.
        return os.pidfd_open(pid)
    return None


def memory_kills() -> int:
    """Returns the number of processes that the system has killed for lack of memory; 0 if the number is unknown."""
    found = re.search(r"^oom_kill (\d+)$", read_text(Path("/proc/vmstat")), flags=re.MULTILINE)
    return int(found[1]) if found else 0


def describe_exit(exit_code: int) -> str:
    """Describes an exit code: `-11` as "SIGSEGV (signal 11)", `3` as "exit code 3"."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"{signal.Signals(-exit_code).name} (signal {-exit_code})"
    except ValueError:
        return f"signal {-exit_code}"
