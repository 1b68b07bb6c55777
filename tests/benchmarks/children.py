"""Runs a command in a child process and tells what it cost."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Cost:
    """Wall time of a process and its peak memory (that of the process itself, not of its children)."""

    seconds: float
    peak_mb: float

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s, {self.peak_mb:.0f} MB"

    @classmethod
    def best(cls, costs: Iterable[Cost]) -> Cost:
        """The smallest of each: what else the machine did is not the program's."""
        costs = list(costs)
        return cls(min(cost.seconds for cost in costs), min(cost.peak_mb for cost in costs))


def measure(command: Sequence[str]) -> Cost:
    """Runs a command in the checkout, its output dropped. Raises CalledProcessError."""
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command))
    return Cost(seconds, usage.ru_maxrss / 1024)
