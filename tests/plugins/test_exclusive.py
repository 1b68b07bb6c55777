"""Rows that need several devices run last, and alone: in one process, and under xdist."""

from __future__ import annotations

import json
import re
import shutil
import sys

import group_replays
import pytest
from opatlas.plugins.scheduling import ExclusiveScheduling
from scheduled_workers import Worker, config_of, run, two_workers
from sessions import Sessions, row

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="process tables are read from /proc")


@pytest.fixture
def with_groups(sessions: Sessions) -> Sessions:
    """Also collects replays of groups, which fail where a process of one device is still there."""
    # By its name it is collected first.
    shutil.copy(group_replays.__file__, sessions.folder / "test_groups.py")
    return sessions


def of_group(size: int, ranks: str = "") -> dict[str, str]:
    return {**row(size), "EP Size": ranks}


def test_one_process_runs_them_last_and_a_dead_rank_is_one_row(with_groups: Sessions) -> None:
    moods = {group_replays.GOOD: "measured", group_replays.KILLED: "crashed", group_replays.OTHER_GOOD: "measured"}
    with_groups.write("Sum", [*map(of_group, moods), of_group(group_replays.HOT, "16")])
    with_groups.write("Moody", [row(1), row(2)])
    done = with_groups.run("-vv")
    assert (done.code, done.ledger()) == (1, {"measured": 4, "crashed": 1, "skipped": 1}), done.output
    # A group that comes together slowly says so behind the name of its row.
    ran = re.findall(r"^\S+::test_(\w+)", done.output, re.MULTILINE)
    assert ran == ["moody", "moody", "sum", "sum", "sum", "sum"]
    assert with_groups.statuses("Sum") == {**moods, group_replays.HOT: "skipped"}
    (skipped,) = (r for r in with_groups.read("Sum") if r["EP Size"])
    assert re.findall(r"\d+", skipped["Status Reason"]) == ["16", "2"]
    (dead,) = (r for r in with_groups.read("Sum") if r["Status"] == "crashed")
    assert "rank 1 of 2" in dead["Status Reason"]
    assert "SIGKILL" in dead["Status Reason"]
    (manifest,) = (with_groups.database / "runs").glob("*.json")
    assert json.loads(manifest.read_text())["other_devices"][0]["facts"]["ranks"] == 2
    assert not with_groups.left_behind()


def test_workers_have_ended_before_they_run(with_groups: Sessions) -> None:
    with_groups.write("Sum", [of_group(group_replays.GOOD), of_group(group_replays.OTHER_GOOD)])
    with_groups.write("Moody", [row(n) for n in range(101, 110)])
    done = with_groups.run(SIMULATED_DEVICES="2", SIMULATED_VISIBLE_DEVICES="0,1")
    assert "created: 2/2 workers" in done
    assert (done.code, done.ledger()) == (0, {"measured": 11}), done.output
    assert not with_groups.left_behind()


def scheduling(pytestconfig: pytest.Config, kind: str, ordinary: int, exclusive: int):
    """One of two workers, which have collected the same, and the workers."""
    import xdist.scheduler

    inner = getattr(xdist.scheduler, kind)(config_of(pytestconfig))
    inner.numnodes = 2
    scheduler = ExclusiveScheduling(inner, lambda: exclusive)
    return scheduler, two_workers(scheduler, [f"test_{i}.py::test" for i in range(ordinary + exclusive)])


KINDS = ["LoadScheduling", "LoadScopeScheduling"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ordinary", [0, 1, 2, 5, 20])
def test_the_last_worker_gets_the_rest_when_the_other_is_gone(pytestconfig, kind: str, ordinary: int) -> None:
    scheduler, workers = scheduling(pytestconfig, kind, ordinary, exclusive=3)
    done: list[int] = []
    for _ in range(2 * (ordinary + 3)):
        for worker in [worker for worker in workers if worker in scheduler.nodes]:
            ran = run(scheduler, worker, upto=1)
            done += ran
            # An exclusive one only where there is no other worker.
            assert not ran or ran[0] < ordinary or scheduler.nodes == [worker]
            if worker.shutting_down and not worker.sent:
                assert scheduler.remove_node(worker) is None
    assert sorted(done) == list(range(ordinary + 3))
    assert done[-3:] == [ordinary, ordinary + 1, ordinary + 2]
    assert scheduler.tests_finished


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_last_worker_leaves_when_it_dies_goes_to_the_one_in_its_place(pytestconfig, kind: str) -> None:
    scheduler, (first, second) = scheduling(pytestconfig, kind, ordinary=4, exclusive=3)
    for _ in range(4):
        for worker in (first, second):
            run(scheduler, worker)
    gone, last = (first, second) if first.shutting_down and not first.sent else (second, first)
    scheduler.remove_node(gone)
    assert run(scheduler, last, upto=2)
    crashed = scheduler.remove_node(last)
    assert crashed == "test_5.py::test"
    assert not scheduler.tests_finished
    third = Worker("gw2")
    scheduler.add_node(third)
    scheduler.add_node_collection(third, [f"test_{i}.py::test" for i in range(7)])
    scheduler.schedule()
    assert run(scheduler, third) == [6]
    assert scheduler.tests_finished
