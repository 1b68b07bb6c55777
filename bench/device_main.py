"""The device process, from inside: imports torch, owns one device, runs one job after another.

Run as `python -m bench.device_main FD`, where FD is its end of a socket pair. It ends when the
other end is closed, and with its parent.
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
from multiprocessing.connection import Connection

from bench.device_process import NotReady, Ready, Start, Started, Waiting
from bench.job import Job
from database.errors import OpAtlasError

_PR_SET_PDEATHSIG = 1


def main(fd: int) -> None:
    """Serves the jobs that come over `fd` until it is closed."""
    die_with_parent()
    # The Python stack of a segfault goes to stderr, into the report of the row that caused it.
    faulthandler.enable()
    # Ctrl-C is pytest's to answer: it decides what becomes of the row that runs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Connection(fd) as connection:
        start: Start = connection.recv()
        sys.path[:] = dict.fromkeys((*sys.path, *start.sys_path))
        try:
            from bench.runner import Runner

            runner = Runner(start.spec, start.settings)
            connection.send(Ready(runner.describe()))
        except (OpAtlasError, ImportError) as error:
            connection.send(NotReady(f"{type(error).__name__}: {error}"))
            return
        while True:
            try:
                job: Job = connection.recv()
            except EOFError:
                return
            with runner.turn(lambda: connection.send(Waiting()), lambda: connection.send(Started())):
                outcome = runner.run(job)
            # Captured output must be in the file before the row's report is made.
            sys.stdout.flush()
            sys.stderr.flush()
            connection.send(outcome)


def die_with_parent() -> None:
    """Asks Linux to kill this process when its parent ends, however it ends, and even if the GIL is held."""
    if sys.platform != "linux":
        return
    parent = os.getppid()
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
