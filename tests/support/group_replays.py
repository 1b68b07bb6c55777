"""Replays of a group for tests: on each rank the sum over all ranks. Their mood is the size of the row."""

from __future__ import annotations

import ctypes
import os
import signal
import time

import torch
from torch import distributed

from bench import expected
from bench.errors import InvalidRow
from bench.groups.spec import GroupSpec
from bench.registry import replays

GOOD, KILLED, HANGS, RAISES, REFUSED, WRONG, EXITS, FORKS, HANGS_IN_C, DIES_LATE = range(10, 20)
#: The rank that misbehaves.
ONE = 1


def spec_of(cells, options):
    return GroupSpec(2)


def doubled_by_group(x, y):
    """x + y of everybody, a share from each."""
    total = (x + y) / distributed.get_world_size()
    distributed.all_reduce(total)
    return total


@replays("Sum", npu=None, group=spec_of)
def test_sum(row, replay, group):
    mood = row.shape(0)[0]
    if mood == REFUSED:
        raise InvalidRow("size 14 is refused on every rank")
    if group.rank == ONE:
        misbehave(mood)
    replay(doubled_by_group, *row.inputs(), expected=expected.add)


def misbehave(mood):
    if mood == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    if mood == HANGS:
        time.sleep(1000)
    if mood == RAISES:
        raise ValueError("rank 1 has its own mind")
    if mood == EXITS:
        os._exit(0)
    if mood == FORKS:
        if os.fork() == 0:
            time.sleep(1000)
        os.kill(os.getpid(), signal.SIGSEGV)
    if mood == HANGS_IN_C:
        # PyDLL keeps the GIL.
        ctypes.PyDLL(None).sleep(1000)


def test_not_a_replay():
    assert torch.ones(1) == 1
