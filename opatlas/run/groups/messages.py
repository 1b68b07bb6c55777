"""Messages between the processes of a group, besides jobs and their outcomes; and the sockets that carry them."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from opatlas.run.devices.device import DeviceDescription
from opatlas.run.group_spec import GroupSpec

#: Placeholder in the command of a rank: torchrun's launcher replaces it by the number of the rank on its node.
RANK_PLACEHOLDER = "${local_rank}"


@dataclass(frozen=True)
class LaunchRequest:
    """The first message to the agent.

    Attributes:
        spec: the group.
        command: starts a rank of this node; may hold RANK_PLACEHOLDER.
        folder: for files of the launcher; pytest removes it.
        join_timeout_s: how long a node waits for the others.
    """

    spec: GroupSpec
    command: tuple[str, ...]
    folder: str
    join_timeout_s: float


@dataclass(frozen=True)
class LauncherReady:
    """Sent by the agent once torch is imported and it waits for the other nodes."""


@dataclass(frozen=True)
class RanksEnded:
    """Sent by the agent after the ranks have ended.

    Attributes:
        exit_codes: by local rank, in the order in which the ranks ended; the launcher kills the ranks that are left.
    """

    exit_codes: dict[int, int]


@dataclass(frozen=True)
class LaunchFailed:
    """Sent by the agent if the ranks could not be started, with the reason."""

    reason: str


@dataclass(frozen=True)
class RankHello:
    """The first message of a rank.

    Attributes:
        local_rank: its number on this node, which determines its device.
        pid: of its process.
    """

    local_rank: int
    pid: int


@dataclass(frozen=True)
class DeviceOpened:
    """Sent by a rank after its device has passed the probe, before it meets the other ranks."""


@dataclass(frozen=True)
class StepReport:
    """Sent by a rank while a job runs.

    Attributes:
        step: counts up; the others wait for the rank with the lowest step.
        text: the step in words ("in its first call").
    """

    step: int
    text: str


@dataclass(frozen=True)
class RankJoined:
    """Sent by a rank after it has joined the group."""

    device: DeviceDescription


def listen(path: Path, backlog: int) -> socket.socket:
    """Returns a socket that listens at a path. Raises OSError."""
    end = _with_short_name(path, socket.socket.bind)
    end.listen(backlog)
    return end


def connect(path: Path) -> socket.socket:
    """Returns a socket that is connected to the one at a path.

    Raises:
        FileNotFoundError, ConnectionRefusedError: no socket listens there.
    """
    return _with_short_name(path, socket.socket.connect)


def _with_short_name(path: Path, use: Callable[[socket.socket, str], object]) -> socket.socket:
    """Uses a short name for a path: names of sockets have some 100 characters at most. Linux names open folders."""
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
