"""Runs the device process: imports torch, opens one device, and runs one job after another.

Run as `python -m opatlas.run.process.device_main FD [--under-launcher]`, where FD is its end of a socket pair. The
process ends when the other end is closed, and with its parent, unless the parent is a launcher such as msprof.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import sys
from importlib import import_module
from typing import TYPE_CHECKING

from opatlas.errors import OpAtlasError
from opatlas.row.errors import DeviceUnhealthy
from opatlas.row.status import Status
from opatlas.run.job import Job, RowOutcome
from opatlas.run.process.child import UNDER_LAUNCHER, show_stacks
from opatlas.run.process.keeper import die_with_parent, exit_without_cleanup, flush_streams
from opatlas.run.process.messages import ChildChannel, Finished, LockTaken, NotReady, Ready, Start, Waiting

if TYPE_CHECKING:
    from opatlas.run.runner import Runner


def main(fd: int, *, under_launcher: bool) -> None:
    """Runs the jobs that arrive over `fd` until the connection is closed."""
    if not under_launcher:
        # Not under a launcher, because the end of a launcher's thread would count as the end of the parent. The keeper
        # ends the whole group in any case.
        die_with_parent()
    # stderr is part of the row's report.
    show_stacks()
    # Only pytest handles Ctrl-C: it decides about the current row.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with ChildChannel(socket.socket(fileno=fd)) as channel:
        # torch creates half a million permanent objects: garbage collection ignores them during import and timing.
        gc.disable()
        # Imported while pytest collects. Where pytest's import path is needed for it, the import below reports that.
        with contextlib.suppress(ImportError):
            import_module("opatlas.run.runner")
        try:
            start: Start = channel.receive()
        except EOFError:
            return
        sys.path[:] = dict.fromkeys((*sys.path, *start.sys_path))
        try:
            from opatlas.run.runner import Runner

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
                job: Job = channel.receive().whole
            except EOFError:
                return
            outcome = _run(channel, runner, job)
            if outcome.status in (Status.OOM, Status.FAILED) and not runner.is_healthy():
                # The error was fatal for the device, or a library left it for the next launch, as FlashInfer does with
                # CUDA's "invalid argument": the next row gets a new process.
                return


def _run(channel: ChildChannel, runner: Runner, job: Job) -> RowOutcome:
    """Runs a job and sends its answers over the channel."""

    if (refused := runner.refused(job)) is not None:
        # Answered without waiting for the device.
        channel.send(Finished.of(job, refused))
        return refused
    taken, waiting = (lambda: channel.send(LockTaken(job.id))), (lambda holder: channel.send(Waiting(job.id, holder)))
    with runner.locked(waiting, taken), channel.end_forks():
        outcome = runner.run(job)
    flush_streams()
    channel.send(Finished.of(job, outcome))
    return outcome


if __name__ == "__main__":
    is_launched = UNDER_LAUNCHER in sys.argv[2:]
    main(int(sys.argv[1]), under_launcher=is_launched)
    if not is_launched:
        # Under a profiler the process exits normally: it writes its records when the hooked libraries are unloaded.
        exit_without_cleanup()
