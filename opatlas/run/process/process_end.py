"""Controls the end of processes: quick exit, end with the parent, adoption of orphans, parents and children."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Container
from pathlib import Path
from typing import NoReturn

#: Longest wait for the end of processes after SIGKILL. A process that waits for a driver may take much longer.
END_TIMEOUT_S = 10.0
LOOK_S = 0.005


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
    for thread in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found.update(map(int, thread.read_text().split()))
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
