"""A Python of its own for one of our modules, which imports nothing from the working folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_RUN_MODULE = Path(__file__).with_name("run_module.py")


def module_command(module: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module. Python's own -m looks for every import in the working folder first."""
    return [sys.executable, str(_RUN_MODULE), module, *arguments]


def import_environment() -> dict[str, str]:
    """Returns this process's environment, with our packages first on PYTHONPATH.

    An empty entry of PYTHONPATH, which is the working folder, is left out.
    """
    entries = [str(_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(entries)}


def import_paths() -> tuple[str, ...]:
    """Returns where this process finds modules, for another process to look there too; not the working folder as ""."""
    return tuple(filter(None, sys.path))


def forget_imports_from(folder: Path, *, unless_below: Sequence[Path]) -> None:
    """Takes a folder, and what is below, out of this process's import path.

    Args:
        folder: holds data, and perhaps modules that somebody else put there.
        unless_below: the folders whose code the user runs; entries stay if one of these folders is in `folder` itself.
    """
    if not any(_is_below(own, folder) for own in unless_below):
        sys.path[:] = [entry for entry in sys.path if not _is_below(Path(entry), folder)]


def _is_below(path: Path, folder: Path) -> bool:
    return folder.resolve() in (path.resolve(), *path.resolve().parents)
