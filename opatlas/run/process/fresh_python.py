"""Starts a module of OpAtlas in a new Python, which imports nothing from the working folder.

This file is also the script that the new Python runs: `python .../fresh_python.py MODULE ARGUMENT...` acts like
`python -m MODULE`. `-m` would search the working folder first for every import, `-P` needs Python 3.11, and the
command line of msprof may hold no quotes.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

_ROOT = Path(__file__).parents[3]


def module_command(module: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module without the working folder on its import path."""
    return [sys.executable, __file__, module, *arguments]


def import_environment() -> dict[str, str]:
    """Returns this process's environment, with the packages of OpAtlas first on PYTHONPATH.

    Empty entries of PYTHONPATH, which stand for the working folder, are left out.
    """
    entries = [str(_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(entries)}


def import_paths() -> tuple[str, ...]:
    """Returns the import path of this process for a new process, without "", which means the working folder."""
    return tuple(filter(None, sys.path))


def forget_imports_from(folder: Path, *, unless_below: Sequence[Path]) -> None:
    """Removes a folder, and all folders below it, from this process's import path.

    Args:
        folder: a folder of data, which may hold modules of unknown origin.
        unless_below: folders whose code the user runs; nothing is removed if one of them lies in `folder`.
    """
    if not any(_is_below(own, folder) for own in unless_below):
        sys.path[:] = [entry for entry in sys.path if not _is_below(Path(entry), folder)]


def _is_below(path: Path, folder: Path) -> bool:
    return folder.resolve() in (path.resolve(), *path.resolve().parents)


if __name__ == "__main__":
    _HERE = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if entry and os.path.realpath(entry) != _HERE]
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
