"""Folders that a user names: their absolute paths, the files below them, and what a path is that is no folder."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

from database.commands import UsageError
from database.errors import OpAtlasError

#: `C:`, or `C:\Users\me\db`, which is a single name where `/` separates folders.
_DRIVE = re.compile(r"[A-Za-z]:(\\.*)?")


def absolute(path: Path) -> Path:
    """Returns the absolute path, in which no `..` is left; links keep their names unless a `..` follows."""
    return path.resolve() if ".." in path.parts else path.absolute()


def expect_folder(path: Path, remedy: str, *, option: str = "", may_be_made: bool = False) -> None:
    """Sees to it that a path is a folder.

    Args:
        remedy: what to do if there is none: "name one with a database".
        option: what the path was given to, "" for an argument without a name.
        may_be_made: whether a folder that is not there is made later.

    Raises:
        UsageError: the path is a file, is of Windows on another system, or is not there.
    """
    named = f"{option} " if option else ""
    drive = next((place for place, part in enumerate(path.parts) if _DRIVE.fullmatch(part)), None)
    if drive is not None and os.name != "nt" and not path.is_dir():
        raise UsageError(
            f"{named}{Path(*path.parts[drive:])}: a path of Windows, which {platform.system()} does not have: name the "
            f"folder as this system does (in WSL, C: is /mnt/c)"
        )
    if path.exists() and not path.is_dir():
        raise UsageError(f"{named}{path}: a file, not a folder: name a folder ({path.parent} holds this file)")
    if not may_be_made and not path.is_dir():
        raise UsageError(f"{named}{path}: no such folder: {remedy}")


def files_below(folder: Path, wanted: Callable[[str], bool]) -> Iterator[Path]:
    """Yields the files at any depth whose name is wanted; links to folders are followed, each folder once.

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
