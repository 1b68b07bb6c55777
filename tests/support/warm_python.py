"""Pythons that have imported what a session takes seconds to import; each session is forked off one of them.

Nothing of this project is imported ahead, and no operator of torch is called: its threads would not be there in the
fork.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

#: What pytest's process imports in a session. Not plugins of pytest, which it could not rewrite any more.
MODULES = ("pandas", "pyarrow.csv", "pytest")
_LONGEST_MESSAGE = 1 << 17


class Fork:
    """A session that was forked off a warm Python, with the methods of `subprocess.Popen`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.pid = int(connection.recv(_LONGEST_MESSAGE))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._connection.settimeout(timeout)
            try:
                self.returncode = int(self._connection.recv(_LONGEST_MESSAGE))
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("pytest", timeout or 0) from None
            self._connection.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class WarmPython:
    """A process that waits for requests, and ends with the process that has started it."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = [sys.executable, __file__, str(theirs.fileno()), *modules]
            self._process = subprocess.Popen(words, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()])

    def pytest(self, arguments: Sequence[str], *, folder: Path, environment: Mapping[str, str], output: Path) -> int:
        """Returns the exit code of `python -m pytest`, whose stdout and stderr go to a file."""
        return self.start(arguments, folder=folder, environment=environment, output=output).wait(300)

    def start(
        self,
        arguments: Sequence[str],
        *,
        folder: Path,
        environment: Mapping[str, str],
        output: Path,
        file_limit: int | None = None,
    ) -> Fork:
        """Starts the same; the system lets no file grow beyond `file_limit` bytes."""
        request = {
            "arguments": arguments,
            "folder": str(folder),
            "environment": dict(environment),
            "output": str(output),
            "file_limit": file_limit,
        }
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._connection, [json.dumps(request).encode()], [theirs.fileno()])
        return Fork(ours)


@cache
def warm_python(*, torch: bool = True) -> WarmPython:
    """Returns the one of this process of tests: with torch for sessions that run rows in pytest's process."""
    return WarmPython((*MODULES, "torch") if torch else MODULES)


def serve(fd: int, modules: Sequence[str]) -> None:
    """Returns when the other end of the connection is closed; forks a watcher and a session for each request."""
    for name in modules:
        importlib.import_module(name)
    gc.freeze()
    # The system reaps the watchers.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(fileno=fd) as connection:
        while True:
            request, fds, _, _ = socket.recv_fds(connection, _LONGEST_MESSAGE, 1)
            if not request:
                return
            if os.fork() == 0:
                connection.close()
                watch(json.loads(request), *fds)
            os.close(fds[0])


def watch(request: Mapping[str, object], fd: int) -> None:
    """Forks a session, and tells its pid and its exit code; returns in the session alone."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid == 0:
        os.close(fd)
        become(**request)
    os.write(fd, str(pid).encode())
    _, status = os.waitpid(pid, 0)
    os.write(fd, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def become(arguments: list[str], folder: str, environment: dict[str, str], output: str, file_limit: int | None) -> None:
    """As `python -m pytest` would have begun."""
    os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666), 1)
    os.dup2(1, 2)
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
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
    serve(int(sys.argv[1]), sys.argv[2:])
