"""The cores of this machine that a process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

from bench.devices.cgroups import ROOT, cpu_quota


def available_cores(root: Path = ROOT) -> int:
    """Returns how many threads can run at once: the cores of the affinity mask, or fewer under a CPU quota."""
    quota = cpu_quota(root)
    # A thread more than whole cores uses what is left of the quota.
    return affinity_cores() if quota is None else max(min(affinity_cores(), math.ceil(quota)), 1)


def affinity_cores() -> int:
    """Returns how many cores the affinity mask has."""
    return len(usable_cores())


def usable_cores() -> set[int]:
    """Returns the numbers of the cores of the affinity mask."""
    try:
        return os.sched_getaffinity(0)
    except AttributeError:
        # Not Linux.
        return set(range(os.cpu_count() or 1))
