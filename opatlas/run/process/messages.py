"""The messages between pytest and the processes that it starts, as bytes; reading them runs no code."""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import msgspec

from opatlas.run.devices.device import DeviceDescription, DeviceSpec
from opatlas.run.devices.device_lock import LockHolder
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, RowOutcome

#: Stands for the number of a rank on its node in the command of a launcher, which is made once for all ranks.
RANK_PLACEHOLDER = "${local_rank}"


class ProcessMessage(msgspec.Struct, frozen=True, tag=True):
    """A message; its class is part of its bytes."""


class Start(ProcessMessage, frozen=True):
    """The first message to a process that owns a device.

    Attributes:
        sys_path: pytest's import path.
    """

    spec: DeviceSpec
    settings: MeasureSettings
    sys_path: tuple[str, ...]


class Run(ProcessMessage, frozen=True):
    """Runs a job.

    Attributes:
        job: without its subject.
        subject, kind: the subject, and its class as "module:name"; b"" for a job without one.
    """

    job: Job
    subject: bytes = b""
    kind: str = ""

    @classmethod
    def of(cls, job: Job) -> Run:
        subject = job.subject
        if subject is None:
            return cls(job)
        kind = f"{type(subject).__module__}:{type(subject).__qualname__}"
        return cls(replace(job, subject=None), encode(subject), kind)

    @property
    def whole(self) -> Job:
        """The job with its subject, whose class is imported: for processes, whose messages are pytest's."""
        if not self.kind:
            return self.job
        return replace(self.job, subject=decode(self.subject, pkgutil.resolve_name(self.kind)))


class Ready(ProcessMessage, frozen=True):
    """Sent after the device has passed its probe, and by a rank after it has joined its group.

    Attributes:
        pid: id of the process.
    """

    device: DeviceDescription
    pid: int


class NotReady(ProcessMessage, frozen=True):
    """Sent by a process that cannot run jobs.

    Attributes:
        unhealthy: whether the device exists, but fails its probe.
        did_not_meet: whether the device works, but its rank did not meet the other ranks of its group.
    """

    reason: str
    unhealthy: bool = False
    did_not_meet: bool = False


class OfJob(ProcessMessage, frozen=True):
    """About the job with this id."""

    job_id: int


class Waiting(OfJob, frozen=True):
    """The job waits for its device, whose lock another process holds."""

    holder: LockHolder


class LockTaken(OfJob, frozen=True):
    """A waiting job has its device. The job's deadline begins with this message."""


class StepReport(OfJob, frozen=True):
    """A rank reports a step of its job.

    Attributes:
        step: counts up; the others wait for the rank with the lowest step.
        text: the step in words ("in its first call").
    """

    step: int
    text: str


class Finished(OfJob, frozen=True):
    """The outcome of a job.

    Attributes:
        outcome: with one sample in place of pending ones: a measurement of a record has at least one.
    """

    outcome: RowOutcome

    @classmethod
    def of(cls, job: Job, outcome: RowOutcome) -> Finished:
        return cls(job.id, _with_samples(outcome, (1.0,)))

    @property
    def whole(self) -> RowOutcome:
        """The outcome, whose samples may be pending."""
        return _with_samples(self.outcome, ())


def _with_samples(outcome: RowOutcome, samples_us: tuple[float, ...]) -> RowOutcome:
    """Returns an outcome with these samples, if its own are pending."""
    if outcome.pending is None or outcome.measurement is None:
        return outcome
    return replace(outcome, measurement=replace(outcome.measurement, samples_us=samples_us))


class DeviceOpened(ProcessMessage, frozen=True):
    """Sent by a rank after its device has passed the probe, before it meets the other ranks; `pid` is its process."""

    pid: int


#: Those that pytest sends, and those that it gets, by which no class can be named.
TO_PROCESS = Start | Run
_OF_JOBS = Waiting | LockTaken | StepReport | Finished
TO_PYTEST = _OF_JOBS | Ready | NotReady | DeviceOpened


def encode(message: object) -> bytes:
    """Returns a message, or another value of these types, as bytes that `decode` reads."""
    try:
        return msgspec.msgpack.encode(message, enc_hook=_plain)
    except UnicodeEncodeError:
        # A name of a file that is not UTF-8, or text of a kernel: JSON escapes lone surrogates.
        return json.dumps(msgspec.to_builtins(message, enc_hook=_plain)).encode("ascii")


def decode(content: bytes, kind: Any) -> Any:
    """Returns the value of a kind, such as TO_PYTEST, in bytes that may come from anybody.

    Raises:
        ValueError, RecursionError: they are none.
    """
    # No message of MessagePack begins with this character.
    if content.startswith((b"{", b"[")):
        return msgspec.convert(json.loads(content), kind, dec_hook=_of_kind, str_keys=True)
    return msgspec.msgpack.decode(content, type=kind, dec_hook=_of_kind)


def _plain(value: object) -> object:
    """Returns what msgspec encodes of a value of another type."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    # numpy's numbers.
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise NotImplementedError(f"{type(value).__name__} is of no message")


def _of_kind(kind: type, value: Any) -> object:
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"{kind.__name__} is of no message")
