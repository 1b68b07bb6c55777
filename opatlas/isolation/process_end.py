"""How a process that has torch ends when nothing is left to do."""

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
    """Ends the process as Python does, but does not take torch apart first: half a second, and the system does it."""
    atexit._run_exitfuncs()
    flush_streams()
    os._exit(0)


_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int | None = None, number: int = signal.SIGKILL) -> None:
    """Asks Linux to send this process a signal when its parent ends, however it ends, and even if the GIL is held.

    Args:
        parent: the parent's pid, where it was told; without it, a parent that has ended already is missed.
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
    """Asks Linux to make this process the parent of each descendant whose own parent has ended.

    Raises:
        OSError: the system refused.
    """
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")


def children_of(pid: int) -> list[int]:
    """The processes whose parent a process is, whether they run or wait to be reaped; none where there is no /proc."""
    return [child for child in (int(path.name) for path in Path("/proc").glob("[0-9]*")) if parent_of(child) == pid]


def parent_of(pid: int) -> int | None:
    """The parent of a process; None where it is gone, or the system does not say."""
    try:
        # The name, in parentheses, may hold anything.
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return None


def _prctl(option: int, value: int, name: str) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({name}) failed")


def flush_streams() -> None:
    """Captured output must be in its file before the report is made.

    If the disk of that file is full, or a kernel has closed the stream or put something else in its place, what was
    printed is lost, and what was measured is not.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
