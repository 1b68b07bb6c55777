"""Paths below a database that somebody else may have made: no link that leads out of its folder is followed.

A database may lie behind links, for its user names it. Below it, each folder of ours is a folder and no link, and a
link in place of a file leads to a regular file below the folder that holds the link. Pipes and devices are not opened.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from database.errors import OpAtlasError

#: A pipe that stands in place of a file must not make its reader wait.
_OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_REPLACE = "put the file itself there, or remove it"


class UnsafePath(OpAtlasError):
    """A path that is not followed, because it leads out of its folder or to no regular file.

    Attributes:
        path: as it was named.
        problem: where the path leads.
        remedy: what the user can do.
    """

    def __init__(self, path: Path, problem: str, remedy: str = _REPLACE) -> None:
        self.path = path
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{path}: {problem}: {remedy}")


def own_folder(path: Path) -> Path:
    """Returns the path of a folder of a database, which need not be there. Raises UnsafePath: the path is a link."""
    if path.is_symlink():
        raise UnsafePath(
            path, f"a link to {os.readlink(path)}, which is not followed", "put a folder there, or remove the link"
        )
    return path


def own_file(path: Path) -> Path:
    """Returns the path of a file, which need not be there, with links resolved.

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
        # Whoever opens the path is told why that cannot be done; up to Python 3.12 a circle of links is a RuntimeError.
        found, mode = path, stat.S_IFLNK if path.is_symlink() else stat.S_IFREG
    if stat.S_ISLNK(mode):
        raise UnsafePath(path, f"a link to {os.readlink(path)}, which leads in a circle or cannot be followed")
    if found is not path and path.parent.resolve() not in found.parents:
        raise UnsafePath(path, f"a link out of its folder, to {found}, which is not followed")
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise UnsafePath(path, "a pipe, a device or a socket, and no regular file")
    return found


def open_own(path: Path) -> BinaryIO:
    """Opens a file for reading. Raises UnsafePath, as `own_file` does, and OSError."""
    file = open(os.open(own_file(path), _OPEN_FLAGS), "rb", closefd=True)  # noqa: SIM115 - the caller closes it
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise UnsafePath(path, "no regular file")
    return file


def read_own(path: Path, most_bytes: int) -> bytes:
    """Reads a whole file. Raises UnsafePath, as `own_file` does or if the file is larger; OSError."""
    with open_own(path) as file:
        size = os.fstat(file.fileno()).st_size
        # To read more than there is would take the memory for that.
        content = file.read(size + 1) if size <= most_bytes else None
    if content is None or len(content) > most_bytes:
        raise UnsafePath(path, f"larger than {most_bytes >> 20:,} MiB", "remove it, or restore it")
    return content


def own_lock(path: Path) -> FileLock:
    """Returns the lock of a file, not yet taken. Raises UnsafePath: the file is a link, or no regular file."""
    if path.is_symlink():
        raise UnsafePath(path, f"a link to {os.readlink(path)}, which is not followed", "remove it")
    return FileLock(own_file(path))
