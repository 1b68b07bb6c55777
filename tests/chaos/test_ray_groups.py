"""Groups over the nodes of a cluster of Ray: their measurements, and the cost of losing a rank or a node."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import time
from typing import Any

import group_replays
import pytest
from ray_clusters import ancestor, hosts_in_report, left, start, tree
from replaying import cells_of
from sample_rows import LAYER
from sessions import QUICKLY, ROOT, Running, Sessions, row

pytestmark = pytest.mark.slow

MODULE = ROOT / "bench" / "test_collectives.py"
NAME = "test_expert_parallel.py"


@pytest.fixture
def with_groups(sessions: Sessions) -> Sessions:
    """Also collects replays of groups, which fail where a process of one device is still there."""
    shutil.copy(group_replays.__file__, sessions.folder / "test_groups.py")
    return sessions


def of_group(size: int, ranks: int) -> dict[str, str]:
    return {**row(size), "EP Size": str(ranks)}


def test_a_message_between_two_nodes_is_the_row_that_nnodes_gives(sessions: Sessions, cluster: Any) -> None:
    cluster.add_node(num_cpus=1)
    asked = (str(MODULE), "--ops=all_reduce", "--bytes-grid=4096", "--num-devices=4", "--comm-dtype=float32")
    done = start(sessions, cluster, *asked, "--topology-tier=0", "--num-devices=2,4", devices=0).wait()
    assert (done.code, done.ledger()) == (0, {"measured": 2}), done.output
    assert left(sessions) == []
    _, by_ray = sessions.read("hcom_allReduce_")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meet = f"--master-port={free.getsockname()[1]}"
    folder = sessions.folder / "by-nnodes"
    nodes = [
        sessions.start(*asked, "--nnodes=2", meet, f"--node-rank={rank}", f"--database-path={folder}", measure=QUICKLY)
        for rank in range(2)
    ]
    assert [node.wait().code for node in nodes] == [0, 0]
    sessions.database = folder
    (by_hand,) = sessions.read("hcom_allReduce_")
    for column in ("message_bytes", "num_devices", "dtype", "topology_tier", "Status", "Instrument", "Cache State"):
        assert by_ray[column] == by_hand[column], column
    assert by_ray["num_devices"] == "4"
    assert float(by_ray["Duration(us)"]) > 0
    # One record counts the checked elements of all ranks; a node of --nnodes knows its own.
    checked, by_node = (int(each["Checked Elements"].partition("/")[0]) for each in (by_ray, by_hand))
    assert checked == 2 * by_node


def test_groups_run_after_the_other_rows_and_a_bad_rank_costs_its_row(with_groups: Sessions, cluster: Any) -> None:
    sessions = with_groups
    cluster.add_node(num_cpus=1)
    moods = {
        group_replays.GOOD: "measured",
        group_replays.KILLED: "crashed",
        group_replays.RAISES: "failed",
        group_replays.REFUSED: "invalid",
        group_replays.HANGS: "timeout",
        group_replays.OTHER_GOOD: "measured",
    }
    sessions.write("Sum", [*(of_group(mood, 4) for mood in moods), of_group(group_replays.HOT, 16), of_group(30, 2)])
    sessions.write("Moody", [row(size) for size in range(200, 240)])
    done = start(sessions, cluster, "--case-timeout=15", "--junitxml=out.xml", devices=2).wait()
    terms = {"measured": 43, "crashed": 1, "failed": 1, "invalid": 1, "timeout": 1, "skipped": 1}
    assert (done.code, done.ledger()) == (1, terms), done.output
    stored = {int(each["Input Shapes"].partition(";")[0]): each for each in sessions.read("Sum")}
    assert {size: stored[size]["Status"] for size in moods} == moods
    # The rank that is the cause, and not one that lost its peer.
    for mood in (group_replays.KILLED, group_replays.RAISES, group_replays.HANGS):
        assert "rank 1 of 4" in stored[mood]["Status Reason"], stored[mood]
    assert hosts_in_report(sessions.folder / "out.xml") == {os.uname().nodename}
    assert left(sessions) == []


def test_experts_are_spread_over_four_nodes(sessions: Sessions, cluster: Any) -> None:
    for _ in range(3):
        cluster.add_node(num_cpus=1)
    module = (ROOT / "bench" / NAME).read_text()
    module = module.replace("from . import", "from opatlas.bench import").replace("from .", "from opatlas.bench.")
    (sessions.folder / NAME).write_text(module)
    layer = cells_of(f"5,40;3,40,48;3,24,40;5,3;3,48;3,40;5,3 | {LAYER} -> 5,40;3 | DT_BF16;INT32")
    sessions.write("DispatchFFNCombine", [{**layer, "EP Size": size} for size in ("2", "8", "10")])
    done = start(sessions, cluster, NAME, "--device=cpu", devices=0).wait()
    assert (done.code, done.ledger()) == (0, {"measured": 2, "skipped": 1}), done.output
    assert left(sessions) == []


@pytest.mark.parametrize(
    ("nodes", "number", "status"),
    [(2, signal.SIGKILL, "device-error"), (3, signal.SIGKILL, "measured"), (3, signal.SIGSTOP, "measured")],
    ids=["killed", "killed and replaced", "silent and replaced"],
)
def test_a_node_that_is_lost_costs_a_group_no_row_while_others_can_take_its_place(
    with_groups: Sessions, cluster: Any, nodes: int, number: signal.Signals, status: str
) -> None:
    sessions = with_groups
    for _ in range(nodes - 1):
        cluster.add_node(num_cpus=1)
    sessions.write("Sum", [of_group(group_replays.WAITS, 4), of_group(group_replays.GOOD, 2)])
    running = start(sessions, cluster, devices=2)
    own = cluster.head_node.all_processes["raylet"][0].process.pid
    raylets = {ancestor(pid, b"raylet/raylet") for pid in waiting_ranks(sessions, running)}
    assert len(raylets) == 2
    raylet = (raylets - {own}).pop()
    all_of_node = tree(raylet)
    for pid in all_of_node if number == signal.SIGSTOP else [raylet]:
        os.kill(pid, number)
    running.wait_until(lambda: "is lost" in running.output.read_text())
    sessions.go()
    done = running.wait()
    for pid in all_of_node:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert sessions.statuses("Sum") == {group_replays.WAITS: status, group_replays.GOOD: "measured"}, done.output
    assert sum(done.ledger().values()) == 2
    assert left(sessions) == []


def waiting_ranks(sessions: Sessions, running: Running) -> list[int]:
    """The processes of the four ranks that run the row that waits."""
    files = [sessions.folder / f"rank-{rank}" for rank in range(4)]
    running.wait_until(lambda: all(path.exists() and path.read_text() for path in files))
    return [int(path.read_text()) for path in files]


#: Undoes the order that OpAtlas gives rows, as a plugin may.
_MIXES = """
def pytest_collection_finish(session):
    session.items.sort(key=lambda item: item.callspec.params["row"].cells["Input Shapes"])
"""


@pytest.mark.usefixtures("quick_ray")
def test_groups_of_one_machine_take_turns_with_other_rows_in_any_order(with_groups: Sessions) -> None:
    sessions = with_groups
    with open(sessions.folder / "conftest.py", "a") as file:
        file.write(_MIXES)
    sessions.write("Sum", [of_group(group_replays.GOOD, 2), of_group(group_replays.OTHER_GOOD, 2)])
    sessions.write("Moody", [row(1), row(165), row(166), row(2)])
    done = sessions.start("--ray=local", alone=True, SIMULATED_DEVICES="2").wait()
    assert (done.code, done.ledger()) == (0, {"measured": 6}), done.output
    assert not sessions.left_behind()


def test_a_plugin_that_limits_the_time_of_a_test_ends_a_group(with_groups: Sessions, cluster: Any) -> None:
    pytest.importorskip("pytest_timeout")
    sessions = with_groups
    sessions.write("Sum", [of_group(group_replays.WAITS, 2)])
    done = start(sessions, cluster, "--timeout=25", devices=2).wait()
    assert done.ledger() == {"timeout": 1}, done.output
    assert left(sessions) == []


def test_ctrl_c_ends_after_the_row_of_a_group_and_twice_at_once(with_groups: Sessions, cluster: Any) -> None:
    sessions = with_groups
    cluster.add_node(num_cpus=1)
    sessions.write("Sum", [of_group(group_replays.WAITS, 4), of_group(group_replays.GOOD, 4)])
    running = start(sessions, cluster, devices=2)
    waiting_ranks(sessions, running)
    for _ in range(2):
        running.send(signal.SIGINT)
        time.sleep(0.5)
    assert running.wait().code == pytest.ExitCode.INTERRUPTED
    assert left(sessions) == []
    for path in sessions.folder.glob("rank-*"):
        path.unlink()
    running = start(sessions, cluster, devices=2)
    waiting_ranks(sessions, running)
    running.send(signal.SIGINT)
    time.sleep(0.5)
    sessions.go()
    assert running.wait().ledger() == {"measured": 1, "not run": 1}
    assert left(sessions) == []
