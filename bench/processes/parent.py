"""No process outlives the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


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
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


def parent_of(pid: int) -> int | None:
    """The parent of a process; None where it is gone, or the system does not say."""
    try:
        # The name, in parentheses, may hold anything.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None
