"""Pythons that are forked off one that has imported torch, which takes a session and its device process a second each.

`Popen` is `subprocess.Popen`, but that a fork runs a command which runs this Python, or another of `WARM`. The fork is
a child of the process that asks, as a new process would be, processes that it starts are forked likewise, and /proc
shows its command line and its environment.

What sessions import of this checkout is there too, but for a program that finds another copy of it first. The first
process has one thread: others would not be there in the fork.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import fcntl
import gc
import importlib.machinery
import inspect
import json
import os
import platform
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
#: The imports of sessions. Not plugins of pytest, which it could not rewrite any more.
MODULES = (
    *("cyclopts", "execnet", "filelock", "msgspec", "pandas", "platformdirs", "pyarrow.csv", "pytest", "rich.console"),
    *("sympy", "torch", "yaml"),
)
#: Those of this checkout, which import the others.
OWN_MODULES = (
    "opatlas.bench.formulas",
    "opatlas.bench.implementations.torch",
    "opatlas.cli.app",
    "opatlas.cli.main",
    "opatlas.cli.query",
    "opatlas.outer.cluster.dealer",
    "opatlas.plugins.collector",
    "opatlas.plugins.hooks",
    "opatlas.plugins.theory",
    "opatlas.run.process.ranks",
    "opatlas.run.runner",
    *(f"opatlas.bench.{path.stem}" for path in sorted(ROOT.glob("bench/test_*.py"))),
)
#: Environment variable of programs that are to import modules of this checkout themselves.
IMPORTS_ANEW = "OPATLAS_TEST_IMPORTS_ANEW"
#: Linux's number of the call `clone`, and its flag for a child of the caller's parent.
_CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine()) if sys.platform == "linux" else None
_CLONE_PARENT = 0x8000
_LONGEST_MESSAGE = 1 << 17
_MOST_DESCRIPTORS = 250
#: Descriptors that a fork was sent are kept above those that its program may have.
_ABOVE = 512
#: Modules whose processes start no others, or do so by `os.posix_spawn` alone.
_WITHOUT_SERVER = ("keeper", "device_main")
#: Bytes for the command lines and the environments that /proc shows of forks.
_ROOM = 1 << 15
_REAL_POPEN = subprocess.Popen
_REAL_SPAWN = os.posix_spawn

#: What the first process of each Python imports.
WARM = {sys.executable: (*MODULES, *OWN_MODULES)}
_servers: dict[str, _Server] = {}


class Popen(_REAL_POPEN):  # type: ignore[type-arg]
    """Starts a command; one of this Python as a fork.

    Args:
        file_limit: bytes beyond which the system lets a fork, and all that it starts, write no file.
    """

    def __init__(self, *arguments: Any, file_limit: int | None = None, **keywords: Any) -> None:
        self._file_limit = file_limit
        super().__init__(*arguments, **keywords)

    def _execute_child(self, *arguments: Any, **keywords: Any) -> None:
        real = super()._execute_child  # type: ignore[misc]
        given = inspect.signature(real).bind(*arguments, **keywords).arguments
        words = given["args"] if isinstance(given["args"], (list, tuple)) else [given["args"]]
        words = list(map(os.fsdecode, words))
        is_forked = _program(words) is not None and given["preexec_fn"] is None
        server = _server_of_this_process(words[0]) if is_forked else None
        if server is None:
            real(*arguments, **keywords)
            return
        streams = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        kept = given["pass_fds"] if given["close_fds"] else _inheritable()
        environment = given["env"] if given["env"] is not None else os.environ
        self.pid = server.fork(
            {
                "words": words,
                "folder": os.fspath(given["cwd"] or os.getcwd()),
                "environment": {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()},
                "new_session": given["start_new_session"],
                "file_limit": self._file_limit,
                "descriptors": [0, 1, 2, *kept],
            },
            [own if stream == -1 else stream for own, stream in enumerate(streams)] + list(kept),
        )
        self._child_created = True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            *(given[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))
        )


def run(
    words: Sequence[str | Path], *, cwd: Path, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; its stdout has stderr in it."""
    process = Popen(
        [os.fspath(word) for word in words],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        try:
            output, _ = process.communicate(timeout=300)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, output)


class _Server:
    """The other end of a process that forks."""

    def __init__(self, connection: socket.socket) -> None:
        self.pid = os.getpid()
        self._connection = connection
        self._lock = threading.Lock()

    def fork(self, request: dict[str, object], descriptors: Sequence[int]) -> int:
        """Returns the pid of a new child of this process. Raises OSError."""
        with self._lock:
            socket.send_fds(self._connection, [json.dumps(request).encode()], descriptors)
            answer = int(self._connection.recv(_LONGEST_MESSAGE))
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        return answer


def _server_of_this_process(python: str) -> _Server | None:
    """The one that serves this process; a process of tests starts its own, and any other has been forked with one."""
    python = python if python in WARM else sys.executable
    if _CLONE is None:
        return None
    if python not in _servers and not hasattr(sys, "_opatlas_warm"):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            words = [python, __file__, str(theirs.fileno()), *WARM[python], "-" * _ROOM]
            # Nobody waits for its end, which is that of the connection.
            # OpenBLAS makes threads when it is loaded; torch would import a device's package.
            own = {"OPENBLAS_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "ROOM": "-" * _ROOM}
            process = _REAL_POPEN(words, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], env=os.environ | own)
            process.returncode = 0
        _servers[python] = _Server(ours)
    server = _servers.get(python)
    return server if server is not None and server.pid == os.getpid() else None


def _program(words: Sequence[str]) -> list[str] | None:
    """The arguments of a Python in a command that runs it; None for other commands, and other options of Python."""
    if words[0] not in WARM:
        try:
            with open(words[0], "rb") as file:
                is_script = file.readline(_LONGEST_MESSAGE).rstrip() == f"#!{sys.executable}".encode()
        except OSError:
            return None
        return list(words) if is_script else None
    program = list(words[1:])
    if program[:1] == ["-u"]:
        program.pop(0)
    return program if len(program) > 0 and (program[0] in ("-c", "-m") or not program[0].startswith("-")) else None


def _inheritable() -> list[int]:
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if number > 2 and os.get_inheritable(number):
                found.append(number)
    return found


def serve(connection: socket.socket, path: Sequence[str]) -> None:
    """Forks for each request; ends the process when the other end of the connection is closed.

    Returns in the forks alone, once their program has ended.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, _LONGEST_MESSAGE, _MOST_DESCRIPTORS)
        if not message:
            os._exit(0)
        pid = _fork_sibling()
        if pid == 0:
            # Above all others, so that none of them is in the way of another.
            moved = [fcntl.fcntl(number, fcntl.F_DUPFD, _ABOVE) for number in descriptors]
            connection.detach()
            return _become(moved, path, **json.loads(message))
        for number in descriptors:
            os.close(number)
        connection.send(str(pid).encode())


def _fork_sibling() -> int:
    """Forks a child of this process's parent; returns 0 in the child, and minus an error number if there is none."""
    python = ctypes.pythonapi
    # Keeps the GIL.
    call = ctypes.PyDLL(None, use_errno=True).syscall
    python.PyOS_BeforeFork()
    pid = int(call(_CLONE, _CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    python.PyOS_AfterFork_Parent()
    return pid if pid > 0 else -ctypes.get_errno()


def _become(
    moved: Sequence[int],
    path: Sequence[str],
    words: list[str],
    folder: str,
    environment: dict[str, str],
    new_session: bool,
    file_limit: int | None,
    descriptors: Sequence[int],
) -> None:
    """Runs a program as a new process would."""
    if new_session:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Which children of tests ignore that run in the background, or with nohup.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    os.closerange(0, _ABOVE)
    for number, wanted in zip(moved, descriptors, strict=True):
        os.dup2(number, wanted)
        os.close(number)
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    # Those of the first process know whether they can seek.
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    buffering = 1 if os.isatty(1) else -1
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", buffering, sys.stdout.encoding, sys.stdout.errors, closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, sys.stderr.encoding, sys.stderr.errors, closefd=False)
    if environment.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    _run(words, path)


def _run(words: list[str], path: Sequence[str]) -> None:
    """Runs a command of this Python."""
    _show(words)
    program = _program(words)
    assert program is not None
    _start_server(path, program)
    # Values that were looked up before the fork.
    tempfile.tempdir = None
    kind = program[0] if program[0] in ("-c", "-m") else ""
    first = os.getcwd() if kind == "-m" else "" if kind else str(Path(program[0]).resolve().parent)
    named = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:] = dict.fromkeys((first, *named, *path))
    sys.argv = program[1:] if kind == "-m" else program if not kind else ["-c", *program[2:]]
    found = importlib.machinery.PathFinder.find_spec("opatlas")
    is_other = found is not None and found.origin != str(ROOT / "opatlas" / "__init__.py")
    if is_other or IMPORTS_ANEW in os.environ:
        for name in [name for name in sys.modules if name.partition(".")[0] == "opatlas"]:
            del sys.modules[name]
    for word in program[:2]:
        # runpy warns of a module that is there before it runs it. Of a package it runs another, __main__.
        if word in sys.modules and not hasattr(sys.modules[word], "__path__"):
            del sys.modules[word]
    if kind == "-m":
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(program[1], "<string>", "exec"), module.__dict__)
    else:
        runpy.run_path(program[0], run_name="__main__")


def _show(words: Sequence[str]) -> None:
    """Puts a command, and the environment, where /proc finds those of this process."""
    # Fields 48 to 51; the second one, in parentheses, may have spaces.
    places = list(map(int, Path("/proc/self/stat").read_text().rpartition(")")[2].split()[45:49]))
    environment = [f"{name}={value}" for name, value in os.environ.items()]
    for (start, end), strings in zip((places[:2], places[2:]), (words, environment), strict=True):
        text = b"".join(os.fsencode(each) + b"\0" for each in strings)
        ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)


def _start_server(path: Sequence[str], program: Sequence[str]) -> None:
    """Forks the server of this process before the program imports anything, unless the program starts no processes."""
    _servers.clear()
    if any(word.rpartition(".")[2] in _WITHOUT_SERVER for word in program[:2]):
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        own = fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, _ABOVE)
        _show(["server"])
        with open(os.devnull, "r+b") as null:
            for number in range(3):
                os.dup2(null.fileno(), number)
        os.closerange(3, _ABOVE)
        ours.detach()
        theirs.detach()
        serve(socket.socket(fileno=own), path)
        raise SystemExit
    theirs.close()
    _servers[sys.executable] = _Server(ours)


def _spawn(path: Sequence[str], command: str, words: Sequence[str], environment: Any, **more: Any) -> int:
    """`os.posix_spawn` as keepers call it."""
    if _program(words) is None or more != {"setsigmask": ()}:
        return _REAL_SPAWN(command, words, environment, **more)
    pid = os.fork()
    if pid:
        return pid
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    inherited = {0, 1, 2, *_inheritable()}
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in inherited:
            with contextlib.suppress(OSError):
                os.close(number)
    try:
        _run(list(words), path)
    except SystemExit:
        raise
    except BaseException:
        sys.excepthook(*sys.exc_info())
        raise SystemExit(1) from None
    raise SystemExit


def main(descriptor: int, modules: Sequence[str]) -> None:
    here = str(Path(__file__).parent)
    named = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    path = [entry for entry in sys.path if entry not in (here, *named)]
    subprocess.Popen = Popen  # type: ignore[misc]
    os.posix_spawn = lambda command, words, environment, **more: _spawn(path, command, words, environment, **more)
    sys._opatlas_warm = True  # type: ignore[attr-defined]
    sys.path.insert(0, str(ROOT))
    for name in modules:
        importlib.import_module(name)
    for name, module in sys.modules.items():
        if name == "opatlas" or name.startswith("opatlas.plugins"):
            # pytest would warn that it did not import them.
            module.__doc__ = f"{module.__doc__}\n\nPYTEST_DONT_REWRITE"
    gc.freeze()
    # A search for processes by their environment means none of these.
    os.environ.clear()
    _show(["server"])
    serve(socket.socket(fileno=descriptor), path)


def _end(status: object) -> None:
    """Ends a fork as Python ends, but that modules are not torn down: with those of torch that takes most of its time.

    Each page that has an object would be copied, only to be given back.
    """
    if not (status is None or isinstance(status, int)):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError):
        status = status or 120
    os._exit((status or 0) & 0xFF)


if __name__ == "__main__":
    ended: object = None
    try:
        main(int(sys.argv[1]), sys.argv[2:-1])
    except SystemExit as error:
        ended = error.code
    _end(ended)
