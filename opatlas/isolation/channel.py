"""Messages between pytest and a process that it has started, which runs code that may do anything to its descriptors.

A frame is a token, drawn anew for each channel, the length of the message, and the message, pickled. The token tells
a message from what a kernel has written to a descriptor that it took for its own. pytest never waits for the rest of
a frame; the process that it has started keeps its end from those that it forks or executes.
"""

from __future__ import annotations

import os
import pickle
import secrets
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, NoReturn

from opatlas.devices.device import DeviceDescription, DeviceSpec
from opatlas.devices.device_lock import LockHolder
from opatlas.instruments.instrument import MeasureSettings

_TOKEN_BYTES = 16
_LENGTH = struct.Struct("!I")
#: A message of a million samples has less than a tenth of it.
_MOST_BYTES = 256 << 20
_READ_BYTES = 1 << 16
#: How long a process that is about to read may leave a message unread.
_SEND_TIMEOUT_S = 60.0
#: What a process has sent before its end has come within this time after it.
_LAST_WORDS_S = 0.2


class ChannelBroken(Exception):
    """What came is not a message. Nothing that follows can be relied on."""


class _Frames:
    """Turns bytes into messages."""

    def __init__(self, token: bytes) -> None:
        self._token = token
        self._bytes = bytearray()

    def __len__(self) -> int:
        """Bytes that belong to no message yet."""
        return len(self._bytes)

    def add(self, data: bytes) -> None:
        self._bytes += data

    def next(self) -> Any | None:
        """The next message; None while its frame is incomplete. Raises ChannelBroken."""
        if not self._token.startswith(self._bytes[:_TOKEN_BYTES]):
            raise ChannelBroken("bytes that are no message came over the connection")
        header = _TOKEN_BYTES + _LENGTH.size
        if len(self._bytes) < header:
            return None
        (length,) = _LENGTH.unpack_from(self._bytes, _TOKEN_BYTES)
        if length > _MOST_BYTES:
            raise ChannelBroken(f"a message of {length} bytes came over the connection")
        if len(self._bytes) < header + length:
            return None
        content = bytes(self._bytes[header : header + length])
        del self._bytes[: header + length]
        try:
            return pickle.loads(content)
        except Exception as error:
            raise ChannelBroken(f"a message that cannot be read came over the connection ({error!r})") from error


def _frame(token: bytes, message: object) -> bytes:
    content = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"a message of {len(content)} bytes is longer than the {_MOST_BYTES} that are read")
    return token + _LENGTH.pack(len(content)) + content


class Channel:
    """pytest's end of a channel: no call waits longer than it is told to."""

    def __init__(self, end: socket.socket) -> None:
        """Takes over a connected stream socket. Raises OSError where the other end is closed."""
        token = secrets.token_bytes(_TOKEN_BYTES)
        self._socket = end
        self._socket.setblocking(False)
        self._token = token
        self._frames = _Frames(token)
        self._write(token)

    def fileno(self) -> int:
        """For `multiprocessing.connection.wait`."""
        return self._socket.fileno()

    def send(self, message: object) -> None:
        """Raises OSError where the other end is closed, or does not read."""
        self._write(_frame(self._token, message))

    def take(self) -> Any | None:
        """The next message; None where it has not come, or not all of it.

        Raises:
            EOFError: the other end was closed; OSError: it was closed before it had read everything.
            ChannelBroken: what came is not a message.
        """
        while (message := self._frames.next()) is None:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return None
            if not data:
                raise EOFError
            self._frames.add(data)
        return message

    def receive(self, limit_s: float | None, end: int | None = None) -> Any | None:
        """Waits for the next message; None where it has not come in time, all of it.

        Args:
            limit_s: seconds; None: for ever.
            end: can be read when the other process has ended, which a fork of that process may keep the channel from
                telling.

        Raises:
            As `take`; EOFError where the process has ended, too.
        """
        deadline = None if limit_s is None else time.monotonic() + limit_s
        own, ends = self.fileno(), [] if end is None else [end]
        while (message := self.take()) is None:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            ready = wait([own, *ends], left_s)
            if ready and own not in ready and not wait([own], _LAST_WORDS_S):
                raise EOFError
        return message

    def is_silent(self) -> bool:
        """Whether nothing has come that was not taken; the end of the connection counts as something."""
        return not self._frames and not wait([self.fileno()], 0)

    def close(self) -> None:
        self._socket.close()

    def _write(self, data: bytes) -> None:
        view, deadline = memoryview(data), time.monotonic() + _SEND_TIMEOUT_S
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                _wait_for_room(self._socket, deadline - time.monotonic())


def _wait_for_room(end: socket.socket, limit_s: float) -> None:
    writable = select.poll()
    writable.register(end, select.POLLOUT)
    if not writable.poll(max(limit_s, 0) * 1000):
        raise TimeoutError(f"the other end has not read a message within {_SEND_TIMEOUT_S:g} s")


class ChildChannel:
    """The end of a process that pytest has started. No process that is forked or executed by it has the channel.

    A fork that comes back from a kernel ends where it would use the channel, and answers nobody.
    """

    def __init__(self, end: socket.socket) -> None:
        """Takes over a connected stream socket. Raises EOFError where the other end is closed."""
        end.set_inheritable(False)
        end.setblocking(True)
        self._socket = end
        self._identity = _identity(end.fileno())
        self._pid = os.getpid()
        os.register_at_fork(after_in_child=self._close_in_fork)
        self._token = self._read(_TOKEN_BYTES)
        self._frames = _Frames(self._token)

    def send(self, message: object) -> None:
        """Ends this process where the descriptor is not the channel any more."""
        self._expect_own()
        self._socket.sendall(_frame(self._token, message))

    def receive(self) -> Any:
        """Waits for the next message.

        Raises:
            EOFError: the other end was closed.
            ChannelBroken: something else has read from this descriptor, or pytest sent what this process cannot read.
        """
        while (message := self._frames.next()) is None:
            self._frames.add(self._read(_READ_BYTES, at_least=1))
        return message

    @contextmanager
    def only_here(self) -> Iterator[None]:
        """A fork made inside does not leave it."""
        try:
            yield
        finally:
            if os.getpid() != self._pid:
                os._exit(1)

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> ChildChannel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, most: int, at_least: int | None = None) -> bytes:
        """So many bytes, or between `at_least` and so many."""
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
            _end("a kernel closed this process's connection to pytest")

    def _close_in_fork(self) -> None:
        # Not what a kernel may have put in its place.
        if _identity(self._socket.fileno()) == self._identity:
            self._socket.close()


def _identity(fd: int) -> tuple[int, int] | None:
    """Of the file behind a descriptor; None where it is closed."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _end(why: str) -> NoReturn:
    """Ends this process at once: its descriptors are not what they were."""
    try:
        print(f"opatlas: {why}", file=sys.__stderr__, flush=True)
    finally:
        os._exit(1)


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
        unhealthy: the device is there, but fails the known-good operation.
        alone: False where the device is well, and did not meet the others of its group.
    """

    reason: str
    unhealthy: bool
    alone: bool = True


@dataclass(frozen=True)
class Waiting:
    """Sent when another session's row, or another worker's, has the device: the job is not to blame for the wait.

    Attributes:
        holder: who holds the lock of the device.
    """

    holder: LockHolder


@dataclass(frozen=True)
class LockTaken:
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
