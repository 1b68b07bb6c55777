"""A kernel that starts processes of its own: none outlives its session, however that ends."""

from __future__ import annotations

import os
import signal

import pytest
from moods import Mood
from processes import Role, in_role
from sessions import HANG_S, Running, Sessions, row

#: Each starts children, as its size says, and then does what its kernel type says.
PARENT_REPLAYS = """
import ctypes
import os
import subprocess
import time
from pathlib import Path

from opatlas.bench import formulas

from opatlas.bench.implementations import torch as impl
from opatlas.engine.registry import replays

FOLDER = Path(__file__).parent


def by_subprocess():
    return subprocess.Popen(["sleep", "1000"]).pid


def by_shell():
    # It belongs to nobody as soon as the shell has ended, and has all files that it could inherit.
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
    # In a session of its own, and a child of nobody that is left.
    os.system(f"setsid sh -c 'sleep 1000 & echo $! > {FOLDER}/pid'")
    return int((FOLDER / "pid").read_text())


WAYS = {1: [by_subprocess], 2: [by_shell], 3: [by_fork], 4: [by_session], 5: [by_daemon]}
WAYS[6] = [start for (start,) in WAYS.values()]


def start_children(row):
    size = row.shape(0)[0]
    pids = [start() for start in WAYS[size]]
    (FOLDER / "new").write_text(" ".join(map(str, pids)))
    (FOLDER / "new").rename(FOLDER / f"children-{size}")


@replays("Measured", npu=None)
def test_measured(row, replay):
    start_children(row)
    replay(impl.add, *row.inputs(), expected=formulas.add)


@replays("Hanging", npu=None)
def test_hanging(row, replay):
    start_children(row)
    time.sleep(1000)


@replays("Leaving", npu=None)
def test_leaving(row, replay):
    # The device process itself leaves its process group, and does not end with the keeper any more.
    os.setsid()
    ctypes.CDLL(None).prctl(1, 0)
    start_children(row)
    time.sleep(1000)


@replays("Dying", npu=None)
def test_dying(row, replay):
    start_children(row)
    os._exit(3)
"""

EACH = (1, 2, 3, 4, 5)
ALL = 6


def started(sessions: Sessions, kernel_type: str, *options: str, sizes: tuple[int, ...], devices: str = "0") -> Running:
    """A session whose first rows start children, and whose last one waits until the test says go."""
    (sessions.folder / "test_parents.py").write_text(PARENT_REPLAYS)
    sessions.write(kernel_type, [row(size) for size in sizes])
    sessions.write("Moody", [row(Mood.WAIT_FOR_GO)])
    return sessions.start(*options, SIMULATED_DEVICES=devices)


def children(sessions: Sessions, running: Running, sizes: tuple[int, ...]) -> set[int]:
    """That rows have started, once they have."""
    paths = [sessions.folder / f"children-{size}" for size in sizes]
    running.wait_until(lambda: all(path.exists() for path in paths))
    pids = {int(pid) for path in paths for pid in path.read_text().split()}
    assert len(pids) == len(EACH)
    return pids


@pytest.mark.parametrize(
    ("kernel_type", "devices"),
    [("Hanging", "0"), ("Leaving", "0"), pytest.param("Hanging", "2", marks=pytest.mark.slow)],
)
def test_a_killed_pytest_leaves_nothing_behind(sessions: Sessions, kernel_type: str, devices: str) -> None:
    running = started(sessions, kernel_type, sizes=(ALL,), devices=devices)
    assert children(sessions, running, (ALL,)) <= set(sessions.processes())
    running.send(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL
    assert sessions.left_behind() == []


def test_a_stopped_keeper_goes_on_when_pytest_is_killed(sessions: Sessions) -> None:
    running = started(sessions, "Hanging", sizes=(ALL,))
    children(sessions, running, (ALL,))
    (keeper,) = in_role(running.process.pid, Role.KEEPER)
    os.kill(keeper.pid, signal.SIGSTOP)
    running.send(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL
    assert sessions.left_behind() == []


@pytest.mark.parametrize(
    ("kernel_type", "timeout_s", "status", "reason"),
    [
        ("Hanging", HANG_S, "timeout", f"still running after {HANG_S} s; its process was ended"),
        ("Leaving", HANG_S, "timeout", f"still running after {HANG_S} s; its process was ended"),
        # At once, and not when its time is over.
        ("Dying", 300, "crashed", "the device process died: exit code 3"),
    ],
    ids=["timeout", "timeout in a session of its own", "crash"],
)
def test_a_row_takes_its_children_along(
    sessions: Sessions, kernel_type: str, timeout_s: int, status: str, reason: str
) -> None:
    running = started(sessions, kernel_type, f"--case-timeout={timeout_s}", sizes=EACH)
    running.wait_for_body(Mood.WAIT_FOR_GO)
    assert children(sessions, running, EACH).isdisjoint(sessions.processes())
    sessions.go()
    done = running.wait()
    assert (done.code, done.ledger()) == (1, {"measured": 1, status: len(EACH)})
    assert {cells["Status Reason"] for cells in sessions.read(kernel_type)} == {reason}
    assert sessions.left_behind() == []


def test_a_session_that_ends_takes_the_children_of_its_rows_along(sessions: Sessions) -> None:
    running = started(sessions, "Measured", sizes=EACH)
    running.wait_for_body(Mood.WAIT_FOR_GO)
    # How long they live until then is their process's business: one that a row has changed is replaced.
    assert children(sessions, running, EACH)
    sessions.go()
    done = running.wait()
    assert (done.code, done.ledger()) == (0, {"measured": 1 + len(EACH)})
    assert sessions.left_behind() == []
