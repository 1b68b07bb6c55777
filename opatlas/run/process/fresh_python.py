"""Starts a module of OpAtlas in a new Python, which imports nothing from the working folder.

This file is also the script that the new Python runs: `python .../fresh_python.py MODULE ARGUMENT...` acts like
`python -m MODULE`. `-m` would search the working folder first for every import, `-P` needs Python 3.11, and the
command line of msprof may hold no quotes.

Neither pytest nor such a process loads bytecode from a cache that was changed since pytest began to start them: a
kernel may write there, with the size and time of the source, so that its code would run in later processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import SourceFileLoader
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[3]
#: Environment variable with the time, in nanoseconds of a file system, from which on changed caches are not used.
_SINCE = "OPATLAS_CACHES_UNTIL_NS"


def module_command(module: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module without the working folder on its import path."""
    return [sys.executable, __file__, module, *arguments]


def import_environment() -> dict[str, str]:
    """Returns this process's environment, with the packages of OpAtlas first on PYTHONPATH.

    Empty entries of PYTHONPATH, which stand for the working folder, are left out.
    """
    distrust_changed_caches()
    entries = [str(_ROOT), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(entries)}


def answers_of(module: str, request: object, failure: str) -> Iterator[Any]:
    """Runs a module that begins with `request_of_parent`, and yields its answers while it runs.

    Args:
        request: a JSON value.
        failure: what is said if it fails ("the cases cannot be listed"), before the last line of its stderr.

    Raises:
        OpAtlasError: the process failed.
    """
    from subprocess import PIPE, Popen
    from tempfile import TemporaryFile

    from opatlas.errors import OpAtlasError

    command, environment = module_command(module), import_environment()
    with (
        TemporaryFile("w+") as said,
        Popen(command, stdin=PIPE, stdout=PIPE, stderr=said, text=True, env=environment) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request))
        process.stdin.close()
        yield from map(json.loads, process.stdout)
        if process.wait():
            said.seek(0)
            why = (said.read().strip().splitlines() or ["no message"])[-1]
            raise OpAtlasError(f"{failure} ({why})")


def request_of_parent() -> tuple[Any, Callable[[object], None]]:
    """Returns the request of `answers_of`, and what sends a JSON value back; all else that is printed is on stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return json.load(sys.stdin), lambda answer: print(json.dumps(answer), file=answers, flush=True)


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


def distrust_changed_caches() -> None:
    """Makes this process, and those that it starts, load no bytecode from caches that are changed from now on.

    The time at which the state of a file changed (ctime) is not for a program to set.
    """
    if hasattr(SourceFileLoader.path_stats, "until_ns"):
        return
    until_ns = int(os.environ.setdefault(_SINCE, str(time.time_ns())))
    path_stats = SourceFileLoader.path_stats

    def stats_unless_changed(loader: SourceFileLoader, path: str) -> Any:
        # After an OSError Python compiles the source, and writes no cache.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, NotImplementedError):
            if os.stat(cache_from_source(path)).st_ctime_ns > until_ns:
                raise OSError(f"the cache of {path} was changed")
        return path_stats(loader, path)

    stats_unless_changed.until_ns = until_ns  # type: ignore[attr-defined]
    SourceFileLoader.path_stats = stats_unless_changed  # type: ignore[method-assign, assignment]


def remove_changed_caches(since_ns: int) -> None:
    """Removes caches of this process's modules, but for those of installed packages, that were changed since a time.

    Later sessions would trust them.
    """
    files = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
    folders = {os.path.dirname(file) for file in files if file and f"{os.sep}site-packages{os.sep}" not in file}
    for part in ("opatlas", "bench", "plugins", "shapes") if _ROOT.name != "site-packages" else ("opatlas",):
        folders |= {folder for folder, _, _ in os.walk(_ROOT / part) if not folder.endswith("__pycache__")}
    for folder in folders - {os.path.dirname(os.__file__)}:
        with contextlib.suppress(OSError), os.scandir(os.path.join(folder, "__pycache__")) as found:
            for entry in found:
                if entry.name.endswith(".pyc") and entry.stat(follow_symlinks=False).st_ctime_ns > since_ns:
                    os.unlink(entry.path)


if __name__ == "__main__":
    distrust_changed_caches()
    _HERE = str(Path(__file__).resolve().parent)
    sys.path[:] = [entry for entry in sys.path if entry and os.path.realpath(entry) != _HERE]
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
