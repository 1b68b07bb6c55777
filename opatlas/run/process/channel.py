"""Transfers messages between pytest and a process that pytest has started, whose kernels may misuse any descriptor.

A frame is a random token of the channel, the length of the message, and the message (messages.py). The token
distinguishes messages from bytes that a kernel writes to a wrong descriptor. pytest never waits for the rest of a
frame. Processes that the started process forks or executes do not inherit its end of the channel.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any, NoReturn

from opatlas.run.process.messages import TO_PROCESS, TO_PYTEST, ProcessMessage, decode, encode

_TOKEN_BYTES = 16
_LENGTH = struct.Struct("!I")
#: Longest message, in bytes. A message of a million samples is less than a tenth as long.
_MOST_BYTES = 256 << 20
_READ_BYTES = 1 << 16
#: Maximum time in which a process reads a message.
_SEND_TIMEOUT_S = 60.0
#: Messages that a process sent before its end arrive within this time after its end.
_LAST_WORDS_S = 0.2


class ChannelBroken(Exception):
    """The channel cannot be used any more, because bytes arrived that are not a valid message."""


class _Frames:
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
        if not self._token.startswith(self._bytes[:_TOKEN_BYTES]):
            raise ChannelBroken("bytes that are not a message came over the connection")
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
            return decode(content, self._kinds)
        except (ValueError, RecursionError) as error:
            raise ChannelBroken(f"an unreadable message came over the connection ({error!r})") from error


def frame(token: bytes, message: ProcessMessage) -> bytes:
    """Returns a message as it goes over the channel with this token."""
    content = encode(message)
    if len(content) > _MOST_BYTES:
        raise ValueError(f"a message of {len(content)} bytes exceeds the limit of {_MOST_BYTES} bytes")
    return token + _LENGTH.pack(len(content)) + content


class Channel:
    """pytest's end of a channel. No call waits longer than its limit."""

    def __init__(self, end: socket.socket) -> None:
        """Takes over a connected stream socket. Raises OSError if the other end is closed."""
        token = secrets.token_bytes(_TOKEN_BYTES)
        self._socket = end
        self._socket.setblocking(False)
        self._token = token
        self._frames = _Frames(token, TO_PYTEST)
        self._write(token)

    def fileno(self) -> int:
        """Returns the descriptor, for `multiprocessing.connection.wait`."""
        return self._socket.fileno()

    def send(self, message: ProcessMessage) -> None:
        """Sends a message. Raises OSError if the other end is closed, or does not read the message in time."""
        self._write(frame(self._token, message))

    def take(self) -> Any | None:
        """Returns the next message if it has arrived completely, else None.

        Raises:
            EOFError: the other end was closed.
            OSError: the other end was closed before it had read everything.
            ChannelBroken: the arrived bytes are not a message.
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

    def receive(self, limit_s: float | None, ends: Sequence[int] = ()) -> Any | None:
        """Waits for the next message, and returns None if the message does not arrive completely in time.

        Args:
            limit_s: longest wait in seconds; None: no limit.
            ends: descriptors of which one becomes readable when the other process has ended; the channel alone does
                not show the end if a fork of the process holds the channel open.

        Raises:
            EOFError: the other end was closed, or the process has ended.
            OSError, ChannelBroken: as in `take`.
        """
        deadline = None if limit_s is None else time.monotonic() + limit_s
        own = self.fileno()
        while (message := self.take()) is None:
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            ready = wait([own, *ends], left_s)
            if ready and own not in ready and not wait([own], _LAST_WORDS_S):
                raise EOFError
        return message

    def is_silent(self) -> bool:
        """Returns whether nothing has arrived since the last message. Raises as `take`."""
        return self.take() is None and not self._frames

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
    """The process's end of a channel, which forked and executed processes do not inherit.

    A fork made in a kernel that returns ends as soon as it uses the channel.
    """

    def __init__(self, end: socket.socket) -> None:
        """Takes over a connected stream socket. Raises EOFError if the other end is closed."""
        end.set_inheritable(False)
        end.setblocking(True)
        self._socket = end
        self._identity = _identity(end.fileno())
        self._pid = os.getpid()
        os.register_at_fork(after_in_child=self._close_in_fork)
        self._token = self._read(_TOKEN_BYTES)
        self._frames = _Frames(self._token, TO_PROCESS)

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
            self._frames.add(self._read(_READ_BYTES, at_least=1))
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
