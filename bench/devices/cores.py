"""The cores of this machine that a process may use."""

from __future__ import annotations

import os


def available_cores() -> int:
    """How many there are."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        # Not Linux.
        return os.cpu_count() or 1
