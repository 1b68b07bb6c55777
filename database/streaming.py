"""Large files, read once from front to back, gzip or plain."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from database.errors import OpAtlasError

#: What reading a gzip file raises that ends too early, or is damaged.
BROKEN_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)
_GZIP = b"\x1f\x8b"
#: Large enough to cost nothing, small enough for progress to move.
_BUFFER_BYTES = 1 << 18


class _Counted(io.RawIOBase):
    """A file that tells how much was read of it."""

    def __init__(self, file: io.FileIO, on_bytes: Callable[[int], None]) -> None:
        self._file = file
        self._on_bytes = on_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        block = self._file.read(len(buffer))
        buffer[: len(block)] = block
        self._on_bytes(len(block))
        return len(block)


@contextmanager
def open_stream(path: Path, on_bytes: Callable[[int], None]) -> Iterator[IO[bytes]]:
    """Gives the bytes of a file, unpacked where they are packed by gzip, whatever its name.

    Args:
        on_bytes: told how many bytes of the file itself were read, for progress.

    Raises:
        OpAtlasError: the file cannot be opened. Reading a damaged gzip file raises one of BROKEN_GZIP.
    """
    try:
        file = io.FileIO(path)
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): check the path and its permissions") from None
    with file:
        counted = io.BufferedReader(_Counted(file, on_bytes), _BUFFER_BYTES)
        try:
            is_packed = counted.peek(len(_GZIP)).startswith(_GZIP)
        except OSError as error:
            raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): check the path") from None
        if not is_packed:
            yield counted
            return
        with gzip.open(counted) as unpacked:
            yield unpacked  # type: ignore[misc]


def size_mb(path: Path) -> float:
    """Of the file itself. Raises OpAtlasError."""
    try:
        if path.is_file():
            return path.stat().st_size / 1e6
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): check its permissions") from None
    raise OpAtlasError(f"{path}: no such file: check the path")
