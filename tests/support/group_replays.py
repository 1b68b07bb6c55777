"""Replays of a group for tests: on each rank the sum over all ranks. Their mood is the size of the row.

Copied into a session's folder as test_groups.py.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import time
from dataclasses import replace
from pathlib import Path

from opatlas.bench import formulas

from opatlas.row.errors import InvalidRow
from opatlas.run.group import GroupSpec
from opatlas.run.registry import replays

GOOD, KILLED, HANGS, RAISES, REFUSED, EXITS, OTHER_GOOD, WRITES, RETURNS_TWICE, HOT, WAITS = range(10, 21)
#: The rank that misbehaves.
ONE = 1


def spec_of(cells, options):
    return GroupSpec(int(cells.get("EP Size") or 2))


def sum_of_shares(x, y):
    """x + y, to which each rank gives its share."""
    from torch import distributed

    total = (x + y) / distributed.get_world_size()
    distributed.all_reduce(total)
    return total


@replays("Sum", npu=None, group=spec_of)
def test_sum(row, replay, group):
    print(f"rank {group.rank} of {group.size}")
    expect_no_device_process()
    mood = row.shape(0)[0]
    if mood == REFUSED:
        raise InvalidRow("a bad size for every rank")
    if group.rank == ONE:
        misbehave(mood)
    if mood == WAITS:
        wait_for_go(group.rank)
    replay(sum_of_shares, *row.inputs(), expected=formulas.add)
    if mood == HOT and group.rank == ONE:
        measurement = replace(replay.outcome.measurement, throttled="too hot")
        replay.outcome = replace(replay.outcome, measurement=measurement)


def misbehave(mood):
    if mood == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if mood == HANGS:
        # PyDLL keeps the GIL.
        ctypes.PyDLL(None).sleep(1000)
    if mood == RAISES:
        raise ValueError("rank 1 has its own mind")
    if mood == EXITS:
        os._exit(0)
    if mood == WRITES:
        for fd in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                end = socket.socket(fileno=os.dup(fd))
                if end.family == socket.AF_UNIX:
                    end.send(b"123456789")
    if mood == RETURNS_TWICE:
        os.fork()


def wait_for_go(rank):
    """Leaves the number of this process, and waits for the file of Sessions.go."""
    here = Path(__file__).parent
    (here / f"rank-{rank}").write_text(str(os.getpid()))
    while not (here / "go").exists():
        time.sleep(0.05)


def expect_no_device_process():
    """None of this session, which its folder marks, owns a device now."""
    mark = os.environ.get("OPATLAS_TEST_FOLDER")
    for process in Path("/proc").glob("[0-9]*") if mark else ():
        try:
            command = (process / "cmdline").read_bytes()
            ours = f"OPATLAS_TEST_FOLDER={mark}".encode() in (process / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if ours and b"opatlas.run.process.device_main" in command and b"--meeting=" not in command:
            raise AssertionError(f"process {process.name} holds a device")
