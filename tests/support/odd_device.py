"""A stand-in for a device process, without torch: is ready at once, and answers jobs in a given way.

Run as `python odd_device.py FD WAY`. Each measured outcome has the first input's size as its only sample, so that it
identifies the row.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from opatlas.row.record import Measurement
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription
from opatlas.run.job import Job, RowOutcome
from opatlas.run.process.messages import ChildChannel, Finished, Ready, frame

#: The size of the row before which nothing is odd.
ODD = 2.0


def outcome_of(job: Job) -> RowOutcome:
    size = float(job.cells["Input Shapes"])
    return RowOutcome(
        Status.MEASURED, measurement=Measurement(samples_us=(size,), instrument="none", cache_state="warm")
    )


class Malice:
    """Runs code in whoever unpickles it."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, (f"touch {os.environ['MALICE']}",)


def answers_twice(channel: ChildChannel, job: Job) -> None:
    for _ in range(2):
        channel.send(Finished(job.id, outcome_of(job)))


def answers_for_another(channel: ChildChannel, job: Job) -> None:
    channel.send(Finished(job.id - 1, outcome_of(job)))


def answers_without_a_job(channel: ChildChannel, job: Job) -> None:
    channel.send(Ready(DeviceDescription("odd", {}), os.getpid()))


def answers_unreadably(channel: ChildChannel, job: Job) -> None:
    content = pickle.dumps(Malice())
    channel._socket.sendall(channel._token + len(content).to_bytes(4, "big") + content)


def answers_half(channel: ChildChannel, job: Job) -> None:
    channel._socket.sendall(frame(channel._token, Finished(job.id, outcome_of(job)))[:-1])
    time.sleep(1000)


def replays_its_answer_to_the_row_before(channel: ChildChannel, job: Job) -> None:
    before = replace(job, cells={"Input Shapes": str(ODD - 1)})
    channel.send(Finished(job.id - 1, outcome_of(before)))
    channel.send(Finished(job.id, outcome_of(job)))


def closes_and_goes_on(channel: ChildChannel, job: Job) -> None:
    os.close(channel._socket.fileno())
    time.sleep(1000)


def ends_with_one(channel: ChildChannel, job: Job) -> None:
    sys.exit(1)


def kills_its_keeper(channel: ChildChannel, job: Job) -> None:
    """Leaves a process of a session of its own behind, which nobody would find any more."""
    orphan = subprocess.Popen(["sleep", "303"], start_new_session=True, env={})
    Path(os.environ["ORPHAN"]).write_text(str(orphan.pid))
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(1000)


def does_what_its_size_says(size: float) -> None:
    """The rows of tests/run/test_scheduler_contract.py."""
    if size == 102:
        os._exit(1)
    if size in (103, 104):
        time.sleep(1000)


def main(fd: int, way: str) -> None:
    odd: Callable[..., None] = globals()[way]
    channel = ChildChannel(socket.socket(fileno=fd))
    channel.receive()
    channel.send(Ready(DeviceDescription("odd", {}), os.getpid()))
    while True:
        try:
            job = channel.receive().whole
        except EOFError:
            return
        if way == does_what_its_size_says.__name__:
            does_what_its_size_says(float(job.cells["Input Shapes"]))
        if outcome_of(job).measurement.samples_us == (ODD,) and way != does_what_its_size_says.__name__:
            odd(channel, job)
        else:
            channel.send(Finished(job.id, outcome_of(job)))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
