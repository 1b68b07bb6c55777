"""A Python that has imported what a session takes seconds to import; each session is forked off it.

For sessions that are neither killed nor looked at from outside while they run. Nothing of this project
is imported ahead, and no operator of torch is called: its threads would not be there in the fork.
"""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path


class WarmPython:
    """A process that waits; it ends with the one that has started it."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            words = [sys.executable, __file__, str(theirs.fileno())]
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])
        self._lines = ours.makefile("rw")

    def pytest(self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], output: Path) -> int:
        """The exit code of `python -m pytest`, whose stdout and stderr go to a file."""
        request = {"arguments": arguments, "folder": str(folder), "environment": environment, "output": str(output)}
        print(json.dumps(request, default=dict), file=self._lines, flush=True)
        return int(self._lines.readline())


#: One for each process of tests.
warm_python = cache(WarmPython)


def serve(fd: int) -> None:
    """Returns in the parent when nobody asks any more, and never in a fork."""
    import pandas  # noqa: F401
    import pyarrow.csv  # noqa: F401
    import pytest  # noqa: F401
    import torch  # noqa: F401

    gc.freeze()
    with socket.socket(fileno=fd) as connection, connection.makefile("rw") as lines:
        for line in lines:
            pid = os.fork()
            if pid == 0:
                connection.detach()
                os.close(fd)
                become(**json.loads(line))
            _, status = os.waitpid(pid, 0)
            print(os.waitstatus_to_exitcode(status), file=lines, flush=True)


def become(arguments: list[str], folder: str, environment: dict[str, str], output: str) -> None:
    """As `python -m pytest` would have begun."""
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), 1)
    os.dup2(1, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    here = str(Path(__file__).parent)
    named = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = dict.fromkeys((folder, *named, *(path for path in sys.path if path != here)))
    # What was looked up before the fork.
    tempfile.tempdir = None
    sys.argv = ["pytest", *arguments]
    import pytest

    raise SystemExit(pytest.main(arguments))


if __name__ == "__main__":
    serve(int(sys.argv[1]))
