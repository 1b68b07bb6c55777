"""The messages between pytest and the processes that it starts, as bytes, and the end of a process.

A frame is a random token of the channel, the length of the message, and the message. The token distinguishes messages
from bytes that a kernel writes to a wrong descriptor. Reading a message runs no code.
"""

from __future__ import annotations

import json
import os
import pkgutil
import socket
import struct
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NoReturn

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
        may_recover: whether a new process may be able to: the device exists, but fails its probe.
    """

    reason: str
    may_recover: bool = False


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


TOKEN_BYTES = 16


_LENGTH = struct.Struct("!I")


#: Longest message, in bytes. A message of a million samples is less than a tenth as long.
_MOST_BYTES = 256 << 20


READ_BYTES = 1 << 16


class ChannelBroken(Exception):
    """The channel cannot be used any more, because bytes arrived that are not a valid message."""


class Frames:
    """Parses messages from bytes."""

    def __init__(self, token: bytes, kinds: Any) -> None:
        self._token = token
        self._kinds = kinds
        self._bytes = bytearray()

    def __len__(self) -> int:
        """Returns the number of bytes that are not parsed yet."""
        return len(self._bytes)

    def add(self, data: bytes) -> None:
        self._bytes += data

    def next(self) -> Any | None:
        """Returns the next message; None if its frame is incomplete. Raises ChannelBroken."""
        if not self._token.startswith(self._bytes[:TOKEN_BYTES]):
            raise ChannelBroken("bytes that are not a message came over the connection")
        header = TOKEN_BYTES + _LENGTH.size
        if len(self._bytes) < header:
            return None
        (length,) = _LENGTH.unpack_from(self._bytes, TOKEN_BYTES)
        if length > _MOST_BYTES:
            raise ChannelBroken(f"a message of {length} bytes came over the connection")
        if len(self._bytes) < header + length:
            return None
        content = bytes(self._bytes[header : header + length])
        del self._bytes[: header + length]
        try:
            return decode(content, self._kinds)
        except (ValueError, RecursionError) as error:
            raise ChannelBroken(f"an unreadable message came over the connection ({error!r})") from error


def frame(token: bytes, message: ProcessMessage) -> bytes:
    """Returns a message as it goes over the channel with this token."""
    content = encode(message)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"a message of {len(content)} bytes exceeds the limit of {_MOST_BYTES} bytes")
    return token + _LENGTH.pack(len(content)) + content


class ChildChannel:
    """The process's end of a channel, which forked and executed processes do not inherit.

    A fork made in a kernel that returns ends as soon as it uses the channel.
    """

    def __init__(self, end: socket.socket, kinds: Any = TO_PROCESS) -> None:
        """Takes over a connected stream socket, for messages of some kinds. Raises EOFError if the other is closed."""
        end.set_inheritable(False)
        end.setblocking(True)
        self._socket = end
        self._identity = _identity(end.fileno())
        self._pid = os.getpid()
        os.register_at_fork(after_in_child=self._close_in_fork)
        self._token = self._read(TOKEN_BYTES)
        self._frames = Frames(self._token, kinds)

    def send(self, message: ProcessMessage) -> None:
        """Sends a message. Ends this process if the descriptor no longer belongs to the channel."""
        self._expect_own()
        self._socket.sendall(frame(self._token, message))

    def receive(self) -> Any:
        """Waits for the next message.

        Raises:
            EOFError: the other end was closed.
            ChannelBroken: other code has read from this descriptor.
        """
        while (message := self._frames.next()) is None:
            self._frames.add(self._read(READ_BYTES, at_least=1))
        return message

    @contextmanager
    def end_forks(self) -> Iterator[None]:
        """Returns a context at whose end a fork of this process ends, if the fork was made inside the context."""
        try:
            yield
        finally:
            if os.getpid() != self._pid:
                os._exit(1)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> ChildChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self, most: int, at_least: int | None = None) -> bytes:
        """Reads `most` bytes, or `at_least` to `most` bytes."""
        data = b""
        while len(data) < (at_least or most):
            self._expect_own()
            try:
                more = self._socket.recv(most - len(data))
            except ConnectionResetError:
                more = b""
            if not more:
                raise EOFError
            data += more
        return data

    def _expect_own(self) -> None:
        if os.getpid() != self._pid:
            os._exit(1)
        if _identity(self._socket.fileno()) != self._identity:
            _end_process("a kernel closed this process's connection to pytest")

    def _close_in_fork(self) -> None:
        # Closed only if a kernel has not replaced the descriptor.
        if _identity(self._socket.fileno()) == self._identity:
            self._socket.close()


def _identity(fd: int) -> tuple[int, int] | None:
    """Returns device and inode of the file behind a descriptor; None if the descriptor is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _end_process(why: str) -> NoReturn:
    """Ends this process immediately, because its descriptors were changed."""
    try:
        print(f"opatlas: {why}", file=sys.__stderr__, flush=True)
    finally:
        os._exit(1)
