"""Which process of a session is which, from /proc."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from sessions import wait_for


class Role(str, Enum):
    PYTEST = "pytest"  # the only process of a session, or xdist's controller
    WORKER = "worker"
    KEEPER = "keeper"
    DEVICE = "device"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Process:
    """A process as it was found.

    Attributes:
        started: when, in ticks since the system started; with the pid it names the process for good.
        role: None for those that a kernel has started.
    """

    pid: int
    parent: int
    started: int
    role: Role | None

    @property
    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        stat = _stat(self.pid)
        return stat is not None and stat[0] not in "ZX" and int(stat[19]) == self.started

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


def tree_of(pid: int) -> list[Process]:
    """A process and all that it has started, and they; nothing where it has ended."""
    stat = _stat(pid)
    if stat is None or stat[0] in "ZX":
        return []
    tree = [Process(pid, int(stat[1]), int(stat[19]), _role_of(pid))]
    for child in _children(pid):
        below = tree_of(child)
        # Between fork and exec a child has the command of its parent.
        if below and (below[0].role is None or below[0].role is not tree[0].role):
            tree += below
    return tree


def in_role(pid: int, role: Role) -> list[Process]:
    """The processes of the session whose pytest has that pid, as far as they have a role."""
    return [process for process in tree_of(pid) if process.role is role]


def outlived(processes: Iterable[Process], seconds: float = 60) -> list[Process]:
    """Those that are still there after some time.

    Most end at once. A worker that still imports ends when it has, or when execnet ends it: after 15 s.
    """
    left = list(processes)
    wait_for(lambda: not any(process.alive for process in left), seconds)
    return [process for process in left if process.alive]


def _role_of(pid: int) -> Role | None:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    except OSError:
        return None
    if "opatlas.run.process.keeper" in command:
        return Role.KEEPER
    if "opatlas.run.process.device_main" in command and not any(word.startswith("--meeting=") for word in command):
        return Role.DEVICE
    if any("sys.stdin.readline" in argument for argument in command):
        # The line that execnet sends to the Python that it starts.
        return Role.WORKER
    return Role.PYTEST if "pytest" in command else None


def _children(pid: int) -> list[int]:
    children = []
    with contextlib.suppress(OSError):
        # Each thread has its own.
        for path in list(Path(f"/proc/{pid}/task").glob("*/children")):
            children += [int(child) for child in path.read_text().split()]
    return children


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third on: state, parent, ...; the 20th of these is the start."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
