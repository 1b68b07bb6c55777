"""Controls the end of processes: quick exit, end with the parent, adoption of orphans, parents and children."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn


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
