"""A process that pytest starts, which neither outlives pytest nor leaves descendants, and the channel to it.

Its kernels may misuse any descriptor: pytest never waits for the rest of a frame, and processes that the process forks
or executes do not inherit its end of the channel.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from opatlas.run.devices.system import read_text
from opatlas.run.process.fresh_python import import_environment, module_command, remove_changed_caches
from opatlas.run.process.keeper import END, END_TIMEOUT_S, KILLED, adopt_orphans, end_orphans, own_children
from opatlas.run.process.messages import READ_BYTES, TO_PYTEST, TOKEN_BYTES, Frames, ProcessMessage, frame
from opatlas.text import printable_lines

#: Maximum time in which a process reads a message.
_SEND_TIMEOUT_S = 60.0
#: Messages that a process sent before its end arrive within this time after its end.
_LAST_WORDS_S = 0.2


class Channel:
    """pytest's end of a channel. No call waits longer than its limit."""

    def __init__(self, end: socket.socket, kinds: Any = TO_PYTEST) -> None:
        """Takes over a connected stream socket, for messages of some kinds. Raises OSError if the other is closed."""
        token = secrets.token_bytes(TOKEN_BYTES)
        self._socket = end
        self._socket.setblocking(False)
        self._token = token
        self._frames = Frames(token, kinds)
        self._write(token)

    def fileno(self) -> int:
        """Returns the descriptor, to wait for messages."""
        return self._socket.fileno()

    def send(self, message: ProcessMessage) -> None:
        """Sends a message. Raises OSError if the other end is closed, or does not read the message in time."""
        self._write(frame(self._token, message))

    def take(self) -> Any | None:
        """Returns the next message if it has arrived completely, else None.

        Raises:
            EOFError: the other end was closed.
            OSError: the other end was closed before it had read everything.
            ChannelBroken: the arrived bytes are not a message.
        """
        while (message := self._frames.next()) is None:
            try:
                data = self._socket.recv(READ_BYTES)
            except BlockingIOError:
                return None
            if not data:
                raise EOFError
            self._frames.add(data)
        return message

    def receive(self, limit_s: float | None, ends: Sequence[int] = ()) -> Any | None:
        """Waits for the next message, and returns None if the message does not arrive completely in time.

        Args:
            limit_s: longest wait in seconds; None: no limit.
            ends: descriptors of which one becomes readable when the other process has ended; the channel alone does
                not show the end if a fork of the process holds the channel open.

        Raises:
            EOFError: the other end was closed, or the process has ended.
            OSError, ChannelBroken: as in `take`.
        """
        deadline = None if limit_s is None else time.monotonic() + limit_s
        own = self.fileno()
        while (message := self.take()) is None:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            ready = readable([own, *ends], left_s)
            if ready and own not in ready and not readable([own], _LAST_WORDS_S):
                raise EOFError
        return message

    def is_silent(self) -> bool:
        """Returns whether nothing has arrived since the last message. Raises as `take`."""
        return self.take() is None and not self._frames

    def close(self) -> None:
        self._socket.close()

    def _write(self, data: bytes) -> None:
        view, deadline = memoryview(data), time.monotonic() + _SEND_TIMEOUT_S
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                _wait_for_room(self._socket, deadline - time.monotonic())


def readable(descriptors: Iterable[int], limit_s: float | None) -> set[int]:
    """Waits until descriptors are readable, or for a number of seconds (None: no limit), and returns these."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poller.poll(None if limit_s is None else limit_s * 1000)}


def _wait_for_room(end: socket.socket, limit_s: float) -> None:
    writable = select.poll()
    writable.register(end, select.POLLOUT)
    if not writable.poll(max(limit_s, 0) * 1000):
        raise TimeoutError(f"the other end has not read a message within {_SEND_TIMEOUT_S:g} s")


#: Pauses between attempts to start a process, in seconds: a driver may need time to reset a device.
PAUSES_S = (1.0, 4.0)
TRIES = len(PAUSES_S) + 1
#: Last word on the command line of a process whose parent is not its keeper, but a launcher such as msprof.
UNDER_LAUNCHER = "--under-launcher"
#: Begins the word with the place where the ranks of a group meet: a file, or the variable of the first node's port.
MEETING = "--meeting="
MASTER_PORT = "MASTER_PORT"
#: Time that a keeper may take to end on a loaded machine, besides that of its descendants.
_KEEPER_TIMEOUT_S = 10.0
#: Asks a process for its stacks, which takes faulthandler so many seconds to write.
_SHOW_STACKS = signal.SIGUSR1
_STACKS_S = 0.2


#: The ids of all processes.
_ALL = range(1 << 31)


class Child:
    """A command under a keeper (keeper.py) in a process group of its own, and the channel to it.

    It inherits stdout and stderr: pytest captures the output, or shows the output with -s.

    Attributes:
        pid: the command itself, or the process that a launcher has started for it; None until `opened`.
        ends: descriptors that are readable when the keeper, and that process, have ended (`open_pidfd`).
    """

    def __init__(
        self, command_of: Callable[[str], Sequence[str]], environment: Mapping[str, str], kinds: Any = TO_PYTEST
    ) -> None:
        """Starts the command.

        Args:
            command_of: returns the command, given the descriptor of its end of the channel.
            environment: variables in addition to those of this process.
            kinds: the messages that it sends.

        Raises:
            OSError: the system cannot start the process, for instance because too many processes exist.
        """
        # The descendants of a keeper that a kernel has killed become children of this process.
        adopt_orphans()
        self._memory_kills = memory_kills()
        self._others: Container[int] = _ALL
        #: When a kernel first ran, in nanoseconds since the epoch.
        self._used_ns: int | None = None
        ours, theirs = socket.socketpair()
        self.channel, fd = Channel(ours, kinds), str(theirs.fileno())
        try:
            self.keeper = subprocess.Popen(
                module_command("opatlas.run.process.keeper", str(os.getpid()), fd, *command_of(fd)),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**import_environment(), **environment},
                start_new_session=True,
            )
        except BaseException:
            self.channel.close()
            raise
        finally:
            theirs.close()
        self.pid: int | None = None
        self.ends: list[int] = []
        self._watch(self.keeper.pid)

    def opened(self, pid: int) -> None:
        """Takes the process that has opened its device; a launcher ends later than that."""
        self.pid = pid
        self._watch(pid)

    def wait_for_end(self, within_s: float) -> bool:
        """Returns whether the process, but perhaps not its launcher, ends in time; True if the system does not say."""
        return not self.ends or bool(readable(self.ends, within_s))

    def _watch(self, pid: int) -> None:
        if (end := open_pidfd(pid)) is not None:
            self.ends.append(end)

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """A context in which kernels run, and in which this process starts no other processes."""
        self._used_ns = self._used_ns or time.time_ns()
        self._others = own_children()
        yield
        self._others = _ALL

    def end(self, patience_s: float = 0.0) -> int | None:
        """Ends the command with all its descendants, and waits for their end.

        Args:
            patience_s: time in seconds for it to end by itself, so that its exit code is known and a profiler can write
                its records.

        Returns:
            The exit code, below 0 for a signal; None if it had to be ended.
        """
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self.keeper.wait(patience_s)
        for number in (END, signal.SIGCONT):
            # SIGCONT continues a stopped keeper.
            self.keeper.send_signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.keeper.wait(END_TIMEOUT_S + _KEEPER_TIMEOUT_S)
        with contextlib.suppress(ProcessLookupError):
            # If a kernel has killed the keeper, processes of its group may be left.
            os.killpg(self.keeper.pid, signal.SIGKILL)
        if self.keeper.wait() == -signal.SIGKILL:
            end_orphans(self._others, self.keeper.pid)
        self.channel.close()
        while self.ends:
            os.close(self.ends.pop())
        if self._used_ns is not None:
            remove_changed_caches(self._used_ns)
        return -signal.SIGKILL if code == KILLED else code

    def describe_end(self, code: int | None) -> str:
        """Returns how it ended, with the exit code that `end` has returned: "died: SIGSEGV (signal 11)"."""
        if code is None:
            return "closed its connection and was ended"
        is_killed = code == -signal.SIGKILL
        whose = "its keeper was killed: " if is_killed and self.keeper.returncode != KILLED else ""
        for_memory = is_killed and memory_kills() > self._memory_kills
        return f"died: {whose}{describe_exit(code)}" + (
            ", killed by the system for lack of memory" if for_memory else ""
        )


class Launcher(Protocol):
    """A program under which a device process runs, such as a profiler.

    Attributes:
        patience_s: maximum time in seconds between the end of the process and the end of the launcher.
    """

    patience_s: float

    def command(self, words: Sequence[str]) -> list[str]:
        """Returns the command that runs `words` under the launcher; called at each start. Raises DeviceGone."""
        ...


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
