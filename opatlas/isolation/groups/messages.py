"""What the processes of a group tell each other, besides jobs and their outcomes."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from opatlas.devices.device import DeviceDescription
from opatlas.engine.group_spec import GroupSpec

#: In a word of a rank's command: torchrun's launcher puts the rank's number on its node there.
RANK_PLACEHOLDER = "${local_rank}"


@dataclass(frozen=True)
class LaunchRequest:
    """First message to the agent.

    Attributes:
        spec: the group.
        command: starts a rank of this node; may hold RANK_PLACEHOLDER.
        folder: for what the launcher writes; it is pytest's to remove.
        join_timeout_s: how long a node waits for the others.
    """

    spec: GroupSpec
    command: tuple[str, ...]
    folder: str
    join_timeout_s: float


@dataclass(frozen=True)
class LauncherReady:
    """The agent's first word: torch is imported, and it meets the other nodes now."""


@dataclass(frozen=True)
class RanksEnded:
    """The agent's last word once ranks have ended: their exit codes, by local rank.

    The first one ended by itself; of the others, the launcher has ended those that were left.
    """

    exit_codes: dict[int, int]


@dataclass(frozen=True)
class LaunchFailed:
    """The agent's last word where the ranks could not be started: why."""

    reason: str


@dataclass(frozen=True)
class RankHello:
    """First message of a rank.

    Attributes:
        local_rank: its number on this node, which tells the device it is to own.
        pid: of its process.
    """

    local_rank: int
    pid: int


@dataclass(frozen=True)
class DeviceOpened:
    """Sent by a rank whose device computes what it should, before it meets the others."""


@dataclass(frozen=True)
class StepReport:
    """Sent by a rank while a job runs.

    Attributes:
        step: counts up; the rank with the lowest is the one that the others wait for.
        what: the step in words ("in its first call").
    """

    step: int
    what: str


@dataclass(frozen=True)
class RankJoined:
    """A rank's answer to its Start, once its device computes what it should and the group has come together."""

    device: DeviceDescription


def listen(path: Path, backlog: int) -> socket.socket:
    """A socket that listens there. Raises OSError."""
    end = _with_short_name(path, socket.socket.bind)
    end.listen(backlog)
    return end


def connect(path: Path) -> socket.socket:
    """A socket that is connected to the one that listens there.

    Raises:
        FileNotFoundError, ConnectionRefusedError: nobody listens there.
    """
    return _with_short_name(path, socket.socket.connect)


def _with_short_name(path: Path, use: Callable[[socket.socket, str], object]) -> socket.socket:
    """The name of a socket has some 100 characters at most; Linux has a short one for every folder that is open."""
    end = socket.socket(socket.AF_UNIX)
    try:
        if sys.platform != "linux":
            use(end, str(path))
            return end
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            use(end, f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
    except BaseException:
        end.close()
        raise
    return end
