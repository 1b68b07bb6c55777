"""A kernel that starts processes of its own: none outlives its session, however that ends."""

from __future__ import annotations

import os
import signal

import pytest
from moods import Mood
from processes import Role, in_role
from sessions import HANG_S, Running, Sessions, row

#: Each starts a child in each way, and then does as its kernel type says.
PARENT_REPLAYS = """
import ctypes
import os
import subprocess
import time
from pathlib import Path

from opatlas.bench import formulas

from opatlas.bench.implementations import torch as impl
from opatlas.run.registry import replays

FOLDER = Path(__file__).parent


def by_subprocess():
    return subprocess.Popen(["sleep", "1000"]).pid


def by_shell():
    # It is an orphan as soon as the shell has ended, and has all files that it could inherit.
    os.system(f"sleep 1000 & echo $! > {FOLDER}/pid")
    return int((FOLDER / "pid").read_text())


def by_fork():
    pid = os.fork()
    if pid == 0:
        time.sleep(1000)
        os._exit(0)
    return pid


def by_session():
    return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid


def by_daemon():
    # In a session of its own, and an orphan.
    os.system(f"setsid sh -c 'sleep 1000 & echo $! > {FOLDER}/pid'")
    return int((FOLDER / "pid").read_text())


def start_children(kernel_type):
    pids = [start() for start in (by_subprocess, by_shell, by_fork, by_session, by_daemon)]
    (FOLDER / "new").write_text(" ".join(map(str, pids)))
    (FOLDER / "new").rename(FOLDER / f"children-{kernel_type}")


@replays("Measured", npu=None)
def test_measured(row, replay):
    start_children("Measured")
    replay(impl.add, *row.inputs(), expected=formulas.add)


@replays("Hanging", npu=None)
def test_hanging(row, replay):
    start_children("Hanging")
    time.sleep(1000)


@replays("Leaving", npu=None)
def test_leaving(row, replay):
    # The device process itself leaves its process group, and does not end with the keeper any more.
    os.setsid()
    ctypes.CDLL(None).prctl(1, 0)
    start_children("Leaving")
    time.sleep(1000)


@replays("Dying", npu=None)
def test_dying(row, replay):
    start_children("Dying")
    os._exit(3)
"""

#: Ways to start a child.
WAYS = 5


def started(sessions: Sessions, *kernel_types: str, options: tuple[str, ...] = (), devices: str = "0") -> Running:
    """A session whose first rows start children, and whose last one waits until the test says go."""
    (sessions.folder / "test_parents.py").write_text(PARENT_REPLAYS)
    for kernel_type in kernel_types:
        sessions.write(kernel_type, [row(1)])
    sessions.write("Moody", [row(Mood.WAIT_FOR_GO)])
    return sessions.start(*options, SIMULATED_DEVICES=devices)


def children(sessions: Sessions, running: Running, *kernel_types: str) -> set[int]:
    """Returns the pids of the children that rows of these kernel types have started, once they have."""
    paths = [sessions.folder / f"children-{kernel_type}" for kernel_type in kernel_types]
    running.wait_until(lambda: all(path.exists() for path in paths))
    pids = {int(pid) for path in paths for pid in path.read_text().split()}
    assert len(pids) == WAYS * len(kernel_types)
    return pids


@pytest.mark.parametrize(("kernel_type", "devices", "stops"), [("Hanging", "2", False), ("Leaving", "0", True)])
def test_a_killed_pytest_leaves_nothing_behind(sessions: Sessions, kernel_type: str, devices: str, stops: bool) -> None:
    running = started(sessions, kernel_type, devices=devices)
    assert children(sessions, running, kernel_type) <= set(sessions.processes())
    if stops:
        # It continues when pytest is killed.
        (keeper,) = in_role(running.process.pid, Role.KEEPER)
        os.kill(keeper.pid, signal.SIGSTOP)
    running.send(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL
    assert sessions.left_behind() == []


def test_rows_that_hang_or_die_take_their_children_along_at_once_and_measured_ones_at_the_end(
    sessions: Sessions,
) -> None:
    running = started(sessions, "Dying", "Hanging", "Leaving", "Measured", options=(f"--case-timeout={HANG_S}",))
    running.wait_for_body(Mood.WAIT_FOR_GO)
    assert children(sessions, running, "Dying", "Hanging", "Leaving").isdisjoint(sessions.processes())
    # How long the others live is their process's business: one that a row has changed is replaced.
    assert children(sessions, running, "Measured")
    sessions.go()
    done = running.wait()
    assert (done.code, done.ledger()) == (1, {"measured": 2, "timeout": 2, "crashed": 1})
    assert sessions.left_behind() == []
