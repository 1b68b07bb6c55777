"""A process that pytest starts and watches: how it is started so that nothing outlives pytest, and how it ended."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from opatlas.isolation.channel import Channel
from opatlas.isolation.fresh_python import import_environment, module_command
from opatlas.isolation.keeper import END, END_TIMEOUT_S
from opatlas.text import shown

#: Before each further try of what did not start: a driver that resets a device needs a moment.
PAUSES_S = (1.0, 4.0)
TRIES = len(PAUSES_S) + 1
#: On top of what its descendants take, on a loaded machine.
_KEEPER_TIMEOUT_S = 10.0


def start(
    command_of: Callable[[str], Sequence[str]], environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], Channel]:
    """Starts a process under a keeper (opatlas/isolation/keeper.py), in a group of its own; the channel leads to it.

    Output is inherited, so that it lands where pytest's capture wants it, or on the terminal with -s.

    Args:
        command_of: given the number of its end of the connection, the command.
        environment: besides that of this process.

    Raises:
        OSError: the system starts no process: it has too many, or this Python must not be executed.
    """
    ours, theirs = socket.socketpair()
    channel, fd = Channel(ours), str(theirs.fileno())
    try:
        process = subprocess.Popen(
            module_command("opatlas.isolation.keeper", str(os.getpid()), fd, *command_of(fd)),
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
    """A context of all that is done with a process: if it is not done to its end, the process is ended.

    Otherwise an answer that nobody waits for any more would be taken for that to the next question. It takes a second
    Ctrl-C, a timeout of pytest-timeout, or an error of ours.
    """

    def __init__(self, end_process: Callable[[], object]) -> None:
        self._end_process = end_process
        self._entered = False

    def __enter__(self) -> None:
        if self._entered:
            # Even the end of the process was interrupted.
            self._end_process()
        self._entered = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._end_process()
        self._entered = False


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends what `start` has started, and all that this has started, and waits for it."""
    for number in (END, signal.SIGCONT):
        # The keeper may have been stopped.
        process.send_signal(number)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_TIMEOUT_S + _KEEPER_TIMEOUT_S)
    with contextlib.suppress(ProcessLookupError):
        # Whatever is left where a kernel has killed the keeper.
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def print_to_stderr(text: str) -> None:
    """Shows the user a line, where no session of pytest does."""
    print(shown(f"opatlas: {text}"), file=sys.stderr, flush=True)


def open_pidfd(pid: int) -> int | None:
    """A file that can be read when the process has ended; None where the system has none. To be closed by the caller.

    Its end is not always seen on a connection to it: what a kernel has forked, or a launcher, holds that open.
    """
    with contextlib.suppress(AttributeError, OSError):
        # Not Linux, or an old one.
        return os.pidfd_open(pid)
    return None


def memory_kills() -> int:
    """How many processes the system has killed for want of memory since it started; 0 where it does not say."""
    try:
        found = re.search(r"^oom_kill (\d+)$", Path("/proc/vmstat").read_text(), flags=re.MULTILINE)
    except OSError:
        # Not Linux.
        return 0
    return int(found[1]) if found else 0


def describe_exit(exit_code: int) -> str:
    """`-11` is "SIGSEGV (signal 11)", `3` is "exit code 3"."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"{signal.Signals(-exit_code).name} (signal {-exit_code})"
    except ValueError:
        return f"signal {-exit_code}"
