"""Rows that run in batches, dealt out: a batch to one worker, whole, and what a dead worker leaves to the other."""

from __future__ import annotations

import pytest
from opatlas.plugins.scheduling import BatchScheduling
from scheduled_workers import Worker, config_of, run, two_workers
from xdist.remote import Producer

SIZE = 3


def scheduling(pytestconfig: pytest.Config, rows: int) -> tuple[BatchScheduling, list[Worker]]:
    log = Producer("test", enabled=False)
    scheduler = BatchScheduling(config_of(pytestconfig), log, SIZE)
    scheduler.numnodes = 2
    return scheduler, two_workers(scheduler, [f"test_a.py::test_toy[Toy-{n}]" for n in range(rows)])


def run_all(scheduler: BatchScheduling, workers: list[Worker]) -> list[list[int]]:
    done: list[list[int]] = [[] for _ in workers]
    for _ in range(20):
        for worker, own in zip(workers, done, strict=True):
            own += run(scheduler, worker)
    return done


def test_a_batch_is_not_shared(pytestconfig: pytest.Config) -> None:
    done = run_all(*scheduling(pytestconfig, rows=10))
    assert sorted([*done[0], *done[1]]) == list(range(10))
    batches = [{row // SIZE for row in own} for own in done]
    assert batches[0].isdisjoint(batches[1])


def test_the_row_that_ended_a_worker_is_not_run_again_and_the_rest_of_its_batch_is(pytestconfig: pytest.Config) -> None:
    scheduler, (first, second) = scheduling(pytestconfig, rows=10)
    before = run(scheduler, first, upto=1)
    left = list(first.sent)
    crashed = scheduler.remove_node(first)
    assert crashed == f"test_a.py::test_toy[Toy-{left[0]}]"
    (done,) = run_all(scheduler, [second])
    assert sorted(before + left[:1] + done) == list(range(10))


def test_a_worker_that_has_run_all_of_its_rows_leaves_none(pytestconfig: pytest.Config) -> None:
    scheduler, workers = scheduling(pytestconfig, rows=4)
    run_all(scheduler, workers)
    assert [scheduler.remove_node(worker) for worker in workers] == [None, None]
