"""xdist's schedulers without xdist's workers: the tests that a worker is sent, and those that it has run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest


class Worker:
    """A worker as a scheduler sees it: it notes the tests that it is sent."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.sent: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.sent += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def config_of(pytestconfig: pytest.Config) -> Any:
    """Of a controller with two workers."""
    return SimpleNamespace(
        getoption=lambda name: {"maxschedchunk": None}.get(name),
        getvalue=lambda name: ["2*popen"],
        option=SimpleNamespace(loadscopereorder=False, maxschedchunk=None),
        hook=pytestconfig.hook,
    )


def two_workers(scheduler: Any, nodeids: list[str]) -> list[Worker]:
    """Workers that have collected the same, and got their first rows."""
    workers = [Worker("gw0"), Worker("gw1")]
    for worker in workers:
        scheduler.add_node(worker)
    for worker in workers:
        scheduler.add_node_collection(worker, nodeids)
    scheduler.schedule()
    return workers


def run(scheduler: Any, worker: Worker, upto: int | None = None) -> list[int]:
    """The sent tests that a worker runs: all, or all but the last while it might be sent more."""
    done = []
    while worker.sent and (len(worker.sent) > 1 or worker.shutting_down) and (upto is None or len(done) < upto):
        item = worker.sent.pop(0)
        done.append(item)
        scheduler.mark_test_complete(worker, item, 0.01)
    return done
