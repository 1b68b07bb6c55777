"""Runs a command, and ends all its descendants when the command ends, on pytest's signal, or when pytest dies.

Run as `python -m opatlas.run.process.keeper PARENT FD COMMAND...`. The command inherits FD, and the keeper ends
with the command's exit code, but for KILLED. Linux makes the keeper the parent of every descendant whose own parent has
ended, so that the keeper finds all descendants, in any process group or session.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Container
from pathlib import Path
from typing import NoReturn

#: Longest wait for the end of processes after SIGKILL. A process that waits for a driver may take much longer.
END_TIMEOUT_S = 10.0
LOOK_S = 0.005
#: pytest sends this signal to end the command. (Not SIGTERM, which a kernel may send to its process group.)
END = signal.SIGUSR1
#: Linux sends this signal when pytest has died. It also continues a stopped keeper.
_PARENT_DIED = signal.SIGCONT
_WATCHED = (END, _PARENT_DIED, signal.SIGTERM, signal.SIGCHLD)
#: The exit code of a keeper whose command was killed. A keeper that ends by SIGKILL was killed itself.
KILLED = 128 + signal.SIGKILL
#: Maximum wait for the end of the command after a SIGTERM, which the whole group may have received.
_TERM_TIMEOUT_S = 1.0


def main(parent: int, fd: int, command: list[str]) -> NoReturn:
    """Runs `command`, and ends with the exit code or signal of the command; see above."""
    # Others than those that it waits for end the keeper by a mistake of a kernel.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    # Only pytest handles Ctrl-C: it decides about the current row.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    adopt_orphans()
    die_with_parent(parent, _PARENT_DIED)
    kept = _Descendants(os.posix_spawn(command[0], command, os.environ, setsigmask=()))
    # Closed here, so that the other end notices the end of the command.
    os.close(fd)
    while True:
        number = signal.sigwait(_WATCHED)
        if number == signal.SIGTERM:
            kept.wait(_TERM_TIMEOUT_S)
        elif number != END and kept.is_running() and os.getppid() == parent:
            continue
        kept.end_all()
        code = -signal.SIGKILL if kept.exit_code is None else kept.exit_code
        end_as(KILLED if code == -signal.SIGKILL else code)


class _Descendants:
    """The command and all its descendants."""

    def __init__(self, pid: int) -> None:
        self.exit_code: int | None = None
        self._pid = pid

    def is_running(self) -> bool:
        """Returns whether the command still runs. Reaps all children that have ended."""
        self._reap()
        return self.exit_code is None

    def wait(self, seconds: float) -> None:
        """Waits until the command has ended, or for a number of seconds."""
        deadline = time.monotonic() + seconds
        while self.is_running() and time.monotonic() < deadline:
            time.sleep(LOOK_S)

    def end_all(self) -> None:
        """Kills all descendants, and waits until the descendants are gone and their devices are free.

        The pid of a child is not reused before the keeper reaps the child. Children of a killed process become
        children of the keeper, which finds them in the next round.
        """
        if sys.platform != "linux":
            if self.exit_code is None:
                os.killpg(0, signal.SIGKILL)
            return
        deadline = time.monotonic() + END_TIMEOUT_S
        while self._reap() and time.monotonic() < deadline:
            for child in children_of(os.getpid()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            time.sleep(LOOK_S)

    def _reap(self) -> bool:
        """Reaps all ended children, and returns whether any children are left."""
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == self._pid:
                    self.exit_code = os.waitstatus_to_exitcode(status)
                if not pid:
                    return True
        except ChildProcessError:
            return False


def end_as(code: int) -> NoReturn:
    """Ends this process with an exit code, or with the signal -`code` for a negative code."""
    if code < 0:
        # No second core file: the command has written its own.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [-code])
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def exit_without_cleanup() -> NoReturn:
    """Runs exit handlers and ends the process without destroying torch's objects, which would take half a second."""
    atexit._run_exitfuncs()
    flush_streams()
    os._exit(0)


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int | None = None, number: int = signal.SIGKILL) -> None:
    """Makes Linux send this process a signal when its parent ends, even while the GIL is held.

    Args:
        parent: the parent's pid, if known; without this pid a parent that has already ended is not noticed.
        number: the signal.

    Raises:
        OSError: the system refused.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid() if parent is None else parent
    _prctl(_PR_SET_PDEATHSIG, number, "PR_SET_PDEATHSIG")
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Makes Linux set this process as the parent of each descendant whose own parent has ended.

    Raises:
        OSError: the system refused.
    """
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def own_children() -> set[int]:
    """Returns the children of this process, running or waiting to be reaped; the empty set without /proc."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children", "rb", buffering=0) as file:
                found.update(map(int, file.read().split()))
    return found


def end_orphans(others: Container[int], session: int) -> None:
    """Kills children of this process that it did not start, and waits until they and theirs are gone.

    Args:
        others: children that are left alone, unless they belong to `session`.
        session: pid of the leader of a session of processes.
    """
    deadline = time.monotonic() + END_TIMEOUT_S
    while time.monotonic() < deadline:
        found = {child for child in own_children() if child not in others or _session_of(child) == session}
        if not found:
            return
        for child in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        for child in found:
            # Another part of this process may have waited for it.
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)
        time.sleep(LOOK_S)


def _session_of(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def children_of(pid: int) -> list[int]:
    """Returns the children of a process, running or waiting to be reaped; [] without /proc."""
    return [child for child in (int(path.name) for path in Path("/proc").glob("[0-9]*")) if parent_of(child) == pid]


def parent_of(pid: int) -> int | None:
    """Returns the parent of a process; None if the process is gone, or without /proc."""
    try:
        # The name in parentheses may hold any characters.
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return None


def _prctl(option: int, value: int, name: str) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({name}) failed")


def flush_streams() -> None:
    """Flushes stdout and stderr, so that captured output is complete before pytest makes its report.

    Errors are ignored: if the disk is full, or a kernel has closed or replaced a stream, only output is lost.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
