"""What a device process, or a rank of a group, and pytest tell each other, besides jobs and their outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from opatlas.devices.device_lock import LockHolder
from opatlas.engine.job import DeviceDescription, DeviceSpec, MeasureSettings


@dataclass(frozen=True)
class Start:
    """First message to it: which device it is to own, how it measures, and where it finds modules."""

    spec: DeviceSpec
    settings: MeasureSettings
    sys_path: tuple[str, ...]


@dataclass(frozen=True)
class Ready:
    """A device process's answer, once a known-good operation gave the right result on the device."""

    device: DeviceDescription
    pid: int


@dataclass(frozen=True)
class NotReady:
    """The answer where it cannot be ready.

    Attributes:
        reason: why.
        sick: the device is there, but fails the known-good operation.
        alone: False where the device is well, and did not meet the others of its group.
    """

    reason: str
    sick: bool
    alone: bool = True


@dataclass(frozen=True)
class Waiting:
    """Sent when another session's row, or another worker's, has the device: the job is not to blame for the wait.

    Attributes:
        holder: who holds the lock of the device.
    """

    holder: LockHolder


@dataclass(frozen=True)
class Started:
    """Sent after that, when the body begins; its deadline runs from here."""


@dataclass(frozen=True)
class Answer:
    """Whatever a process says of a job.

    Attributes:
        job_id: of that job. An answer to another job than the one that runs is never taken.
        content: an Outcome, Waiting, Started or, from a rank of a group, Reached.
    """

    job_id: int
    content: Any
