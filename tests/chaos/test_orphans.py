"""A kernel that starts a process of its own: it does not outlive its session, however that ends."""

from __future__ import annotations

import signal

import pytest
from sessions import Running, Sessions, row, wait_for

#: Each starts a child, as HOW says, and then does what its kernel type says.
PARENT_REPLAYS = """
import os
import subprocess
import time
from pathlib import Path

from bench import expected, impl
from bench.registry import replays

FOLDER = Path(__file__).parent


def start_child():
    how = os.environ["HOW"]
    if how == "subprocess":
        pid = subprocess.Popen(["sleep", "1000"]).pid
    if how == "shell":
        # It belongs to nobody as soon as the shell has ended, and has all files that it could inherit.
        os.system(f"sleep 1000 & echo $! > {FOLDER}/pid")
        pid = int((FOLDER / "pid").read_text())
    if how == "fork":
        pid = os.fork()
        if pid == 0:
            time.sleep(1000)
            os._exit(0)
    (FOLDER / "new").write_text(str(pid))
    (FOLDER / "new").rename(FOLDER / "child")


@replays("Measured", npu=None)
def test_measured(row, replay):
    start_child()
    replay(impl.add, *row.inputs(), expected=expected.add)


@replays("Hanging", npu=None)
def test_hanging(row, replay):
    start_child()
    time.sleep(1000)


@replays("Dying", npu=None)
def test_dying(row, replay):
    start_child()
    os._exit(3)
"""

HOW = pytest.mark.parametrize("how", ["subprocess", "shell", "fork"])


def started(sessions: Sessions, kernel_type: str, *options: str, how: str, devices: str = "0") -> Running:
    """A session whose first row starts a child, and whose second one waits until the test says go."""
    (sessions.folder / "test_parents.py").write_text(PARENT_REPLAYS)
    sessions.write(kernel_type, [row(1)])
    sessions.write("Moody", [row(40)])
    return sessions.start(*options, HOW=how, SIMULATED_DEVICES=devices)


def child_of(sessions: Sessions, running: Running) -> int:
    child = sessions.folder / "child"
    assert wait_for(child.exists), running.output.read_text()
    return int(child.read_text())


@HOW
@pytest.mark.parametrize("devices", ["0", "2"])
def test_a_killed_pytest_leaves_nothing_behind(sessions: Sessions, how: str, devices: str) -> None:
    running = started(sessions, "Hanging", how=how, devices=devices)
    assert child_of(sessions, running) in sessions.processes()
    running.send(signal.SIGKILL)
    assert running.wait().code == -signal.SIGKILL
    assert sessions.left_behind() == []


@HOW
def test_a_row_that_times_out_takes_its_child_along(sessions: Sessions, how: str) -> None:
    running = started(sessions, "Hanging", "--case-timeout=3", how=how)
    assert child_of(sessions, running) in sessions.processes()
    running.wait_for_body(40)
    assert child_of(sessions, running) not in sessions.processes()
    sessions.go()
    done = running.wait()
    assert (done.code, done.ledger()) == (1, {"measured": 1, "timeout": 1})
    assert sessions.left_behind() == []


@HOW
def test_a_row_that_crashes_takes_its_child_along_and_is_known_at_once(sessions: Sessions, how: str) -> None:
    running = started(sessions, "Dying", "--case-timeout=60", how=how)
    assert child_of(sessions, running) > 0
    running.wait_for_body(40)
    assert child_of(sessions, running) not in sessions.processes()
    sessions.go()
    done = running.wait()
    assert (done.code, done.ledger()) == (1, {"measured": 1, "crashed": 1})
    assert sessions.read("Dying")[0]["Status Reason"] == "the device process died: exit code 3"
    assert sessions.left_behind() == []


@HOW
def test_a_session_that_ends_takes_the_children_of_its_rows_along(sessions: Sessions, how: str) -> None:
    running = started(sessions, "Measured", how=how)
    running.wait_for_body(40)
    # Whether it is of use to later rows is the kernel's business.
    assert child_of(sessions, running) in sessions.processes()
    sessions.go()
    done = running.wait()
    assert (done.code, done.ledger()) == (0, {"measured": 2})
    assert sessions.left_behind() == []
