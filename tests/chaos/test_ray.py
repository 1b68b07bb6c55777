"""Sessions on clusters of Ray, whose nodes are raylets of this machine: a loss costs no healthy row."""

from __future__ import annotations

import csv
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from moods import Mood
from ray_clusters import ancestor, hosts_in_report, left, start, tree
from sessions import ROOT, Running, Sessions, row

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("quick_ray")]

#: A row that hangs ends soon.
_HANGS = "--case-timeout=8"
_WAITING = (Mood.WAIT_FOR_GO, Mood.WAIT_FOR_GO_TOO)


def test_two_nodes_give_each_row_the_status_that_it_has_without_ray(sessions: Sessions, cluster: Any) -> None:
    cluster.add_node(num_cpus=1)
    sizes = [1, 2, 3, Mood.SEGFAULT, 4, Mood.RAISE, Mood.UNSUPPORTED, 5, Mood.WRONG_RESULT, Mood.SLEEP, Mood.POISON, 6]
    sessions.write("Moody", [row(size) for size in sizes])
    finished = start(sessions, cluster, _HANGS, "--junitxml=out.xml").wait()
    assert finished.ledger() == {
        "measured": 6, "failed": 2, "crashed": 1, "unsupported": 1, "timeout": 1, "device-error": 1
    }  # fmt: skip
    statuses = sessions.statuses("Moody")
    assert statuses[Mood.SEGFAULT] == "crashed"
    assert statuses[Mood.POISON] == "device-error"
    assert finished.has_line("Segmentation fault"), "the output of a row comes back from its host"
    assert hosts_in_report(sessions.folder / "out.xml") == {os.uname().nodename}
    assert left(sessions) == []


CANDIDATE = """
import faulthandler
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return {}
"""
TASK = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(8, 16)]
"""


def test_hosts_judge_the_candidates_of_tasks(sessions: Sessions, cluster: Any) -> None:
    cluster.add_node(num_cpus=1)
    shutil.copy(ROOT / "bench" / "test_listed.py", sessions.folder)
    (sessions.folder / "tasks").mkdir()
    (sessions.folder / "tasks" / "relu.py").write_text(TASK)
    own = sessions.folder / "candidates" / "relu"
    own.mkdir(parents=True)
    returns = {"right": "x.clamp(min=0)", "wrong": "x", "crashes": "faulthandler._sigsegv()", "broken": "x.clamp("}
    for name, code in returns.items():
        (own / f"{name}.py").write_text(CANDIDATE.format(code))
    options = ("test_listed.py", "--tasks=tasks", "--implementation=torch,candidates")
    finished = start(sessions, cluster, *options).wait()
    assert finished.ledger() == {"measured": 2, "xfailed": 3}
    verdicts = {}
    for path in (sessions.database / "implementations").glob("*/tasks.relu.csv"):
        with open(path, newline="") as file:
            (cells,) = csv.DictReader(file)
        verdicts[path.parent.name.split("-")[1]] = cells["Error Class"].partition("/")[0]
    assert verdicts == {"right": "pass", "wrong": "mismatch", "crashes": "crash", "broken": "syntax"}
    assert left(sessions) == []


def test_an_actor_that_is_killed_costs_no_row(sessions: Sessions, cluster: Any) -> None:
    cluster.add_node(num_cpus=1)
    sessions.write("Moody", [row(size) for size in (Mood.WAIT_FOR_GO, *range(200, 260))])
    running = start(sessions, cluster)
    own = body(sessions, running, Mood.WAIT_FOR_GO)
    os.kill(ancestor(own, b"ray::DeviceActor"), signal.SIGKILL)
    running.wait_until(lambda: own not in sessions.processes())
    sessions.go()
    finished = running.wait()
    assert finished.ledger() == {"measured": 61}
    assert finished.has_line("is lost")
    assert not finished.has_line("left out")
    assert left(sessions) == []


def body(sessions: Sessions, running: Running, mood: int) -> int:
    """The process that runs the row of a mood, which waits."""
    file = sessions.folder / f"body-{mood}"
    running.wait_until(lambda: file.exists() and bool(file.read_text()))
    return int(file.read_text())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "silent"])
def test_a_node_that_is_lost_costs_no_row(sessions: Sessions, cluster: Any, number: signal.Signals) -> None:
    cluster.add_node(num_cpus=1)
    sessions.write("Moody", [row(size) for size in (Mood.WAIT_FOR_GO, Mood.WAIT_FOR_GO_TOO, *range(200, 230))])
    # One of the two waits on each node.
    running = start(sessions, cluster)
    raylets = {ancestor(body(sessions, running, mood), b"raylet/raylet") for mood in _WAITING}
    own = cluster.head_node.all_processes["raylet"][0].process.pid
    (raylet,) = raylets - {own}
    all_of_node = tree(raylet)
    for pid in all_of_node if number == signal.SIGSTOP else [raylet]:
        os.kill(pid, number)
    running.wait_until(lambda: "is lost" in running.output.read_text())
    sessions.go()
    finished = running.wait()
    for pid in all_of_node:
        if Path(f"/proc/{pid}").exists():
            os.kill(pid, signal.SIGCONT)
    assert finished.ledger() == {"measured": 32}
    # The processes of a node that comes back end by themselves, too.
    assert left(sessions) == []


def test_a_killed_head_continues(sessions: Sessions, cluster: Any) -> None:
    cluster.add_node(num_cpus=1)
    sessions.write("Moody", [row(size) for size in (*range(200, 260), Mood.WAIT_FOR_GO)])
    running = start(sessions, cluster)
    running.wait_for_records(60)
    running.send(signal.SIGKILL)
    running.process.wait()
    assert left(sessions) == []
    sessions.go()
    again = start(sessions, cluster, "--update-mode=unreplayed").wait()
    assert again.ledger() == {"measured": 1}
    assert set(sessions.statuses("Moody").values()) == {"measured"}
    assert left(sessions) == []


def test_ctrl_c_once_ends_after_the_running_rows_and_a_local_cluster_ends_with_its_session(sessions: Sessions) -> None:
    sessions.write("Moody", [row(size) for size in (Mood.WAIT_FOR_GO, *range(200, 230))])
    running = sessions.start("--ray=local", alone=True, SIMULATED_DEVICES="1")
    running.wait_for_body(Mood.WAIT_FOR_GO)
    running.send(signal.SIGINT)
    running.wait_until(lambda: "Ctrl-C: stopping after the running row" in running.output.read_text())
    sessions.go()
    finished = running.wait()
    # One row more waits at the device, and another one is dealt to it as soon as the first has ended.
    ledger = finished.ledger()
    assert (sum(ledger.values()), ledger["measured"] in (1, 2, 3)) == (31, True), ledger
    assert not sessions.left_behind()


def test_a_local_cluster_ends_with_its_killed_session(sessions: Sessions) -> None:
    sessions.write("Moody", [row(Mood.WAIT_FOR_GO)])
    running = sessions.start("--ray=local", alone=True, SIMULATED_DEVICES="1")
    running.wait_for_body(Mood.WAIT_FOR_GO)
    running.send(signal.SIGKILL)
    running.process.wait()
    assert left(sessions) == []
