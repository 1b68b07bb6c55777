"""What stays together under xdist: batches, implementations of a row, and rows of groups, which run last and alone."""

from __future__ import annotations

import json
import re
import shutil
import sys

import group_replays
import pytest
from opatlas.plugins.controller import RowScheduling
from scheduled_workers import Worker, config_of, run, two_workers
from sessions import Sessions, row
from xdist.remote import Producer


@pytest.fixture
def with_groups(sessions: Sessions) -> Sessions:
    """Also collects replays of groups, which fail where a process of one device is still there."""
    # By its name it is collected first.
    shutil.copy(group_replays.__file__, sessions.folder / "test_groups.py")
    return sessions


def of_group(size: int, ranks: str = "") -> dict[str, str]:
    return {**row(size), "EP Size": ranks}


linux_only = pytest.mark.skipif(sys.platform != "linux", reason="process tables are read from /proc")


@linux_only
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


@linux_only
def test_workers_have_ended_before_they_run(with_groups: Sessions) -> None:
    with_groups.write("Sum", [of_group(group_replays.GOOD), of_group(group_replays.OTHER_GOOD)])
    with_groups.write("Moody", [row(n) for n in range(101, 110)])
    done = with_groups.run(SIMULATED_DEVICES="2", SIMULATED_VISIBLE_DEVICES="0,1")
    assert "created: 2/2 workers" in done
    assert (done.code, done.ledger()) == (0, {"measured": 11}), done.output
    assert not with_groups.left_behind()


def scheduling(pytestconfig: pytest.Config, scopes: str) -> tuple[RowScheduling, list[Worker]]:
    """Returns the scheduling of rows with these scopes, a letter each, and two workers that have collected them."""
    log = Producer("test", enabled=False)
    scheduler = RowScheduling(config_of(pytestconfig), log, lambda ids: dict(zip(ids, scopes, strict=True)))
    scheduler.numnodes = 2
    return scheduler, two_workers(scheduler, [f"test_a.py::test[{n}]" for n in range(len(scopes))])


def run_all(scheduler: RowScheduling, workers: list[Worker]) -> list[list[int]]:
    done: list[list[int]] = [[] for _ in workers]
    for _ in range(30):
        for worker, own in zip(workers, done, strict=True):
            own += run(scheduler, worker, upto=1)
    assert scheduler.tests_finished
    return done


@pytest.mark.parametrize("scopes", ["g", "gg", "aggg", "abggg", "aabbccddggg", "abcdefghijklmnopgg"])
def test_a_scope_is_not_shared_and_the_last_one_goes_to_the_last_worker(pytestconfig, scopes: str) -> None:
    scheduler, workers = scheduling(pytestconfig, scopes)
    assert all(worker.shutting_down for worker in workers) is not bool(scheduler.workqueue)
    done = run_all(scheduler, workers)
    assert sorted([*done[0], *done[1]]) == list(range(len(scopes)))
    of_worker = [[scopes[n] for n in own] for own in done]
    assert set(of_worker[0]).isdisjoint(of_worker[1])
    # The other worker waits for no item, and can end.
    assert all(worker.shutting_down for worker in workers)
    assert all(own == sorted(own) for own in of_worker)


def test_the_row_that_ended_a_worker_is_not_run_again_and_its_scopes_go_to_the_others(pytestconfig) -> None:
    scheduler, (first, second) = scheduling(pytestconfig, "aaabbbcccdddeeegg")
    before = run(scheduler, first, upto=1)
    left = list(first.sent)
    crashed = scheduler.remove_node(first)
    assert crashed == f"test_a.py::test[{left[0]}]"
    (done,) = run_all(scheduler, [second])
    assert sorted(before + left[:1] + done) == list(range(17))
    assert done[-2:] == [15, 16]


def test_a_worker_in_the_place_of_another_gets_its_scopes(pytestconfig) -> None:
    scheduler, workers = scheduling(pytestconfig, "abcdefgh")
    before = [own for worker in workers for own in run(scheduler, worker, upto=1)]
    crashed = [scheduler.remove_node(worker) for worker in workers]
    third = Worker("gw2")
    scheduler.add_node(third)
    scheduler.add_node_collection(third, [f"test_a.py::test[{n}]" for n in range(8)])
    scheduler.schedule()
    (done,) = run_all(scheduler, [third])
    assert len(done) == 8 - len(before) - len(crashed)


def test_a_worker_in_the_place_of_the_last_one_gets_what_is_left(pytestconfig) -> None:
    scheduler, (first, second) = scheduling(pytestconfig, "abggg")
    holder, other = (first, second) if len(first.sent) > 1 else (second, first)
    run(scheduler, other)
    assert scheduler.remove_node(other) is None
    run(scheduler, holder, upto=2)
    crashed = f"test_a.py::test[{holder.sent[0]}]"
    left = holder.sent[1:]
    assert scheduler.remove_node(holder) == crashed
    assert not scheduler.tests_finished
    third = Worker("gw2")
    scheduler.add_node(third)
    scheduler.add_node_collection(third, [f"test_a.py::test[{n}]" for n in range(5)])
    scheduler.schedule()
    assert run(scheduler, third) == left
    assert third.shutting_down
    assert scheduler.tests_finished
