"""SIGKILL to a process of a session at a moment that the test chooses: between two rows, and in one."""

from __future__ import annotations

import json

from killed_rows import MEASURE
from moods import Mood
from processes import Role, in_role
from sessions import Running, Sessions, row
from watched_sessions import kill

PAUSE = """

def pytest_runtest_setup(item):
    import os, pathlib, time
    folder = pathlib.Path(__file__).parent
    if os.environ["PAUSE"] in item.nodeid:
        (folder / f"paused-{os.environ.get('PYTEST_XDIST_WORKER', '')}").touch()
        until = time.monotonic() + 600
        while not (folder / "go").exists():
            assert time.monotonic() < until, "nobody said go"
            time.sleep(0.02)
"""


def pausing(sessions: Sessions, before: str, **environment: str) -> Running:
    """A session that stops before each row that has a word in its name, until the test says go."""
    with open(sessions.folder / "conftest.py", "a") as conftest:
        conftest.write(PAUSE)
    return sessions.start(PAUSE=before, measure=MEASURE, **environment)


def test_a_device_process_that_is_killed_between_two_rows_costs_none(sessions: Sessions) -> None:
    sessions.write("Moody", [row(1), row(2), row(3)])
    running = pausing(sessions, before="Moody-2_2")
    running.wait_until((sessions.folder / "paused-").exists)
    (process,) = in_role(running.process.pid, Role.DEVICE)
    kill(process)
    sessions.go()
    done = running.wait()
    assert (done.code, done.ledger()) == (0, {"measured": 3})
    assert sessions.left_behind() == []


def test_a_process_that_is_killed_in_a_row_costs_that_row(sessions: Sessions) -> None:
    sessions.write("Moody", [row(1), row(Mood.WAIT_FOR_GO), row(2), row(Mood.WAIT_FOR_GO_TOO), row(3)])
    running = sessions.start()
    for mood, role in ((Mood.WAIT_FOR_GO, Role.KEEPER), (Mood.WAIT_FOR_GO_TOO, Role.DEVICE)):
        running.wait_for_body(mood)
        (process,) = in_role(running.process.pid, role)
        kill(process)
    done = running.wait()
    assert (done.code, done.ledger()) == (1, {"measured": 3, "crashed": 2})
    assert sessions.statuses("Moody") == {
        **dict.fromkeys((1, 2, 3), "measured"),
        **dict.fromkeys((Mood.WAIT_FOR_GO, Mood.WAIT_FOR_GO_TOO), "crashed"),
    }
    reasons = [cells["Status Reason"] for cells in sessions.read("Moody") if cells["Status"] == "crashed"]
    assert ["keeper" in reason for reason in reasons] == [True, False]
    assert sessions.left_behind() == []
    expect_measured_again(sessions, 2)


def test_a_worker_that_is_killed_in_a_row_costs_that_row(sessions: Sessions) -> None:
    sessions.write("Moody", [row(1), row(Mood.WAIT_FOR_GO), row(2), row(3)])
    running = sessions.start("-n", "1")
    running.wait_for_body(Mood.WAIT_FOR_GO)
    (process,) = in_role(running.process.pid, Role.WORKER)
    kill(process)
    done = running.wait()
    assert (done.code, done.ledger()) == (1, {"measured": 3, "not run": 1})
    assert sessions.statuses("Moody")[Mood.WAIT_FOR_GO] == ""
    assert sessions.left_behind() == []
    expect_measured_again(sessions, 1)


def expect_measured_again(sessions: Sessions, rows: int) -> None:
    sessions.go()
    done = sessions.run_in_process("--update-mode=missing-only")
    assert (done.code, done.ledger()) == (0, {"measured": rows})


def test_the_worker_that_replaces_a_killed_one_takes_its_device(sessions: Sessions) -> None:
    sessions.write("Moody", [row(size) for size in range(101, 141)])
    running = pausing(sessions, before="Moody", SIMULATED_DEVICES="2")
    running.wait_until(lambda: len(list(sessions.folder.glob("paused-gw*"))) == 2)
    kill(in_role(running.process.pid, Role.WORKER)[1])
    running.wait_until((sessions.folder / "paused-gw2").exists)
    sessions.go()
    done = running.wait()
    assert (done.code, done.ledger()) == (1, {"measured": 39, "not run": 1})
    (manifest,) = (json.loads(path.read_text()) for path in (sessions.database / "runs").glob("*.json"))
    devices = [manifest["device"], *manifest["other_devices"]]
    assert {device["facts"]["id"] for device in devices} == {"0", "1"}
