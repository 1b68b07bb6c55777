"""A stand-in for a device process, without torch: is ready at once, and answers jobs in a given way.

Run as `python odd_device.py FD WAY`. Each measured outcome has the first input's size as its only sample, so that it
identifies the row.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace

from opatlas.row.record import Measurement
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription
from opatlas.run.job import Job, RowOutcome
from opatlas.run.process.channel import Answer, ChildChannel, Ready, _frame

#: The size of the row before which nothing is odd.
ODD = 2.0


def outcome_from_error(job: Job) -> RowOutcome:
    size = float(job.cells["Input Shapes"])
    return RowOutcome(
        Status.MEASURED, measurement=Measurement(samples_us=(size,), instrument="none", cache_state="warm")
    )


class NotHere:
    """Cannot be unpickled by anybody who has not got this module."""


def answers_twice(channel: ChildChannel, job: Job) -> None:
    for _ in range(2):
        channel.send(Answer(job.id, outcome_from_error(job)))


def answers_for_another(channel: ChildChannel, job: Job) -> None:
    channel.send(Answer(job.id - 1, outcome_from_error(job)))


def answers_without_a_job(channel: ChildChannel, job: Job) -> None:
    channel.send(outcome_from_error(job))


def answers_unreadably(channel: ChildChannel, job: Job) -> None:
    channel.send(Answer(job.id, NotHere()))


def answers_half(channel: ChildChannel, job: Job) -> None:
    channel._socket.sendall(_frame(channel._token, Answer(job.id, outcome_from_error(job)))[:-1])
    time.sleep(1000)


def replays_its_answer_to_the_row_before(channel: ChildChannel, job: Job) -> None:
    before = replace(job, cells={"Input Shapes": str(ODD - 1)})
    channel.send(Answer(job.id - 1, outcome_from_error(before)))
    channel.send(Answer(job.id, outcome_from_error(job)))


def closes_and_goes_on(channel: ChildChannel, job: Job) -> None:
    os.close(channel._socket.fileno())
    time.sleep(1000)


def ends_with_one(channel: ChildChannel, job: Job) -> None:
    sys.exit(1)


def main(fd: int, way: str) -> None:
    odd: Callable[[ChildChannel, Job], None] = globals()[way]
    channel = ChildChannel(socket.socket(fileno=fd))
    channel.receive()
    channel.send(Ready(DeviceDescription("odd", {}), os.getpid()))
    while True:
        try:
            job = channel.receive()
        except EOFError:
            return
        if outcome_from_error(job).measurement.samples_us == (ODD,):
            odd(channel, job)
        else:
            channel.send(Answer(job.id, outcome_from_error(job)))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
