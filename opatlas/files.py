"""Files and folders: safe access to databases of strangers, packed files, temporary folders, checks of paths.

A database may come from a stranger. Its own path may contain links, because the user names that path. Below it no
folder of OpAtlas may be a link, and a link to a file must lead to a regular file below the folder of the link. Pipes
and devices are not opened.
"""

from __future__ import annotations

import ast
import gzip
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from opatlas.errors import OpAtlasError, UsageError
from opatlas.text import shortened

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer
    from filelock import FileLock

#: O_NONBLOCK: opening a pipe does not wait for a writer.
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_REPLACE = "put the file itself there, or remove it"


class UnsafePath(OpAtlasError):
    """A path that is not followed: it leads out of its folder, or to something else than a regular file.

    Attributes:
        path: the path as it was named.
        problem: where the path leads.
        remedy: what the user can do.
    """

    def __init__(self, path: Path, problem: str, remedy: str = _REPLACE) -> None:
        self.path = path
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{path}: {problem}: {remedy}")


def safe_folder(path: Path) -> Path:
    """Returns the path of a folder of a database. The folder need not exist. Raises UnsafePath for a link."""
    if path.is_symlink():
        raise UnsafePath(
            path, f"a link to {os.readlink(path)}, which is not followed", "put a folder there, or remove the link"
        )
    return path


def safe_file(path: Path) -> Path:
    """Returns the path of a file with links resolved. The file need not exist.

    Raises:
        UnsafePath: a link leads out of the folder that holds the link, or in a circle; the file is a pipe, a device
            or a socket.
    """
    try:
        found = path.resolve() if path.is_symlink() else path
        mode = os.lstat(found).st_mode
    except FileNotFoundError:
        mode = stat.S_IFREG
    except (OSError, RuntimeError):
        # The caller, who opens the path, gets the error. Up to Python 3.12 a circle of links is a RuntimeError.
        found, mode = path, stat.S_IFLNK if path.is_symlink() else stat.S_IFREG
    if stat.S_ISLNK(mode):
        raise UnsafePath(path, f"a link to {os.readlink(path)}, which leads in a circle or cannot be followed")
    if found is not path and path.parent.resolve() not in found.parents:
        raise UnsafePath(path, f"a link out of its folder, to {found}, which is not followed")
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UnsafePath(path, "a pipe, a device or a socket, not a regular file")
    return found


def open_safely(path: Path, *, writable: bool = False) -> BinaryIO:
    """Opens a file for reading; `writable`: unbuffered, and for writing too.

    Raises:
        OSError: the file cannot be opened.
        UnsafePath: as `safe_file`.
    """
    handle = os.open(safe_file(path), _OPEN_FLAGS | os.O_RDWR if writable else _OPEN_FLAGS)
    file: BinaryIO = os.fdopen(handle, "r+b", 0) if writable else os.fdopen(handle, "rb")
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UnsafePath(path, "not a regular file")
    return file


def read_safely(path: Path, most_bytes: int) -> bytes:
    """Reads a whole file. Raises UnsafePath, as `safe_file` does or for a larger file, and OSError."""
    with open_safely(path) as file:
        size = os.fstat(file.fileno()).st_size
        # A read of `most_bytes` would allocate as much memory, whatever the size of the file.
        content = file.read(size + 1) if size <= most_bytes else None
    if content is None or len(content) > most_bytes:
        raise UnsafePath(path, f"larger than {most_bytes >> 20:,} MiB", "remove it, or restore it")
    return content


def read_file(path: Path, most_bytes: int, remedy: str) -> bytes:
    """Reads a file that a user names. Raises OpAtlasError, whose remedy is `remedy` where the file cannot be read."""
    try:
        return read_safely(path, most_bytes)
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror or error}): {remedy}") from None


def parse_python(path: Path, content: bytes) -> ast.Module:
    """Returns the syntax tree of a file's content. Raises OpAtlasError with the line that is not Python."""
    try:
        return ast.parse(content, str(path))
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise OpAtlasError(f"{path}{line}: is not Python ({error.msg}): correct the file, or move it away") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise OpAtlasError(f"{path}: is not Python ({error}): correct the file, or move it away") from None


def safe_lock(path: Path) -> FileLock:
    """Returns the lock of a file without taking it. Raises UnsafePath: the file is a link, or not a regular file."""
    if path.is_symlink():
        raise UnsafePath(path, f"a link to {os.readlink(path)}, which is not followed", "remove it")
    from filelock import FileLock

    return FileLock(safe_file(path))


#: The exceptions of reading a gzip file that ends too early or is damaged.
BROKEN_GZIP = (EOFError, gzip.BadGzipFile, zlib.error)
_GZIP = b"\x1f\x8b"
#: The size of a read: large enough for speed, and small enough for frequent progress.
_BUFFER_BYTES = 1 << 18


class _CountingFile(io.RawIOBase):
    """A file that reports how many bytes were read."""

    def __init__(self, file: io.FileIO, on_bytes: Callable[[int], None]) -> None:
        self._file = file
        self._on_bytes = on_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        count = self._file.readinto(buffer) or 0
        self._on_bytes(count)
        return count


@contextmanager
def open_stream(path: Path, on_bytes: Callable[[int], None]) -> Iterator[io.BufferedIOBase]:
    """Yields a file open for reading. A file in gzip format is unpacked, whatever its name.

    Args:
        on_bytes: called with the number of bytes that were read from the file itself, for progress.

    Raises:
        OpAtlasError: the file cannot be opened. Reading a damaged gzip file raises one of BROKEN_GZIP.
    """
    try:
        file = io.FileIO(path)
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): check the path and its permissions") from None
    with file:
        counted = io.BufferedReader(_CountingFile(file, on_bytes), _BUFFER_BYTES)
        try:
            is_packed = counted.peek(len(_GZIP)).startswith(_GZIP)
        except OSError as error:
            raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): check the path") from None
        if not is_packed:
            yield counted
            return
        with gzip.open(counted) as unpacked:
            yield unpacked


def size_mb(path: Path) -> float:
    """Returns the size of a file in 10^6 bytes. Raises OpAtlasError."""
    try:
        if path.is_file():
            return path.stat().st_size / 1e6
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): check its permissions") from None
    raise OpAtlasError(f"{path}: no such file: check the path")


class TemporaryFolder:
    """A new folder, until `remove`. If the process is killed, the folder stays."""

    def __init__(self, purpose: str) -> None:
        """`purpose` is part of the name. Raises OSError if there is no room for a folder."""
        # Few commands need what takes 4 ms to import.
        import tempfile

        self.path = Path(tempfile.mkdtemp(prefix=f"opatlas-tmp-{purpose}-"))

    def remove(self) -> None:
        """Removes the folder with all that is in it. A second call does nothing."""
        import shutil

        shutil.rmtree(self.path, ignore_errors=True)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self.remove()


def absolute_path(path: Path) -> Path:
    """Returns the absolute path without `..`. Links are resolved only if the path contains `..`."""
    return path.resolve() if ".." in path.parts else path.absolute()


def expect_folder(path: Path, remedy: str, *, option: str = "", may_be_made: bool = False) -> None:
    """Checks that a path is a folder.

    Args:
        remedy: what to do if there is no folder, such as "name one with a database".
        option: the option that the path was given to; "" for a positional argument.
        may_be_made: whether the folder may be missing, because the caller makes it.

    Raises:
        UsageError: the path is a file, or does not exist.
    """
    named = f"{option} " if option else ""
    if path.exists() and not path.is_dir():
        raise UsageError(f"{named}{path}: a file, not a folder: name a folder ({path.parent} holds this file)")
    if not may_be_made and not path.is_dir():
        raise UsageError(f"{named}{path}: no such folder: {remedy}")


def path_problem(error: OSError) -> str:
    """Returns path, reason and remedy of an error of the system about a path, which may be very long, in one line."""
    return f"{shortened(os.fsdecode(error.filename))}: {error.strerror}: check the path and its permissions"


def files_below(folder: Path, wanted: Callable[[str], bool]) -> Iterator[Path]:
    """Yields the files at any depth whose names `wanted` accepts. Links to folders are followed, each folder once.

    Raises:
        OpAtlasError: a folder cannot be read.
    """

    def stop(error: OSError) -> NoReturn:
        raise OpAtlasError(
            f"{error.filename}: cannot be read ({error.strerror}): make it readable, or name the captures one by one"
        )

    seen: set[str] = set()
    for name, folders, files in os.walk(folder, onerror=stop, followlinks=True):
        real = os.path.realpath(name)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        yield from (Path(name, file) for file in files if wanted(file))
