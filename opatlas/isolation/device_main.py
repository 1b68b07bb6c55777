"""The device process, from inside: imports torch, owns one device, runs one job after another.

Run as `python -m opatlas.isolation.device_main FD [--under-launcher]`, where FD is its end of a socket pair. It
ends when the other end is closed, and with its parent, unless that is a launcher such as msprof.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import socket
import sys
from typing import TYPE_CHECKING

from opatlas.engine.job import Job, RowOutcome
from opatlas.errors import OpAtlasError
from opatlas.isolation import process_end as std_streams
from opatlas.isolation.channel import Answer, ChildChannel, LockTaken, NotReady, Ready, Start, Waiting
from opatlas.isolation.device_process import UNDER_LAUNCHER
from opatlas.isolation.process_end import die_with_parent, exit_without_cleanup
from opatlas.model.errors import DeviceUnhealthy
from opatlas.model.schema import Status

if TYPE_CHECKING:
    from opatlas.engine.runner import Runner


def main(fd: int, *, under_launcher: bool) -> None:
    """Serves the jobs that come over `fd` until it is closed."""
    if not under_launcher:
        # A launcher may start it from a thread of its own, whose end would count as its parent's. The
        # keeper ends the whole group in any case.
        die_with_parent()
    # The Python stack of a segfault goes to stderr, into the report of the row that caused it.
    faulthandler.enable()
    # Ctrl-C is pytest's to answer: it decides what becomes of the row that runs.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with ChildChannel(socket.socket(fileno=fd)) as channel:
        start: Start = channel.receive()
        sys.path[:] = dict.fromkeys((*sys.path, *start.sys_path))
        # torch brings half a million objects, which stay: nobody need look for garbage among them, neither while it
        # is imported nor while a row is timed.
        gc.disable()
        try:
            from opatlas.engine.runner import Runner

            runner = Runner(start.spec, start.settings)
            runner.probe()
            channel.send(Ready(runner.describe(), os.getpid()))
        except (OpAtlasError, ImportError) as error:
            channel.send(NotReady(f"{type(error).__name__}: {error}", unhealthy=isinstance(error, DeviceUnhealthy)))
            return
        gc.freeze()
        gc.enable()
        while True:
            try:
                job: Job = channel.receive()
            except EOFError:
                return
            outcome = _run(channel, runner, job)
            if outcome.status is Status.OOM and not runner.is_healthy():
                # A poison in disguise; the next row gets a fresh process.
                return


def _run(channel: ChildChannel, runner: Runner, job: Job) -> RowOutcome:
    """Runs a job, and says over the channel what becomes of it."""

    def answer(content: object) -> None:
        channel.send(Answer(job.id, content))

    if (refused := runner.refused(job)) is not None:
        # Nobody else's row need end first.
        answer(refused)
        return refused
    with runner.locked(lambda holder: answer(Waiting(holder)), lambda: answer(LockTaken())), channel.only_here():
        outcome = runner.run(job)
    std_streams.flush_streams()
    answer(outcome)
    return outcome


if __name__ == "__main__":
    launched = UNDER_LAUNCHER in sys.argv[2:]
    main(int(sys.argv[1]), under_launcher=launched)
    if not launched:
        # A profiler writes what it has recorded when the libraries that it has hooked are unloaded.
        exit_without_cleanup()
