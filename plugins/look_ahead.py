"""Rows that run before their turn, for instruments that give durations only of many rows at once.

msprof tells what it measured when its process has ended. So, when the first row of a batch is to be
run, the others run with it, and each gets its verdict at its own turn. A batch is the same in every
process of a session, and xdist gives it to one worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice, takewhile

import pytest

from bench.errors import ReplayError
from bench.executor import BatchExecutor
from bench.job import Job, Outcome
from plugins.items import needs_group, row_of


class LookAhead:
    """Outcomes of rows whose turn has not come yet."""

    def __init__(self, size: int) -> None:
        """`size` is the most rows of a batch."""
        self._size = size
        #: By node id.
        self._ready: dict[str, Outcome] = {}
        #: The rows that got their outcomes. A plugin that runs one of these again does not want its batch again.
        self._given: set[str] = set()
        self._places: dict[str, int] = {}

    def outcome(
        self,
        item: pytest.Function,
        executor: BatchExecutor,
        job_of: Callable[[pytest.Function], Job],
        stops: Callable[[], bool],
    ) -> Outcome:
        """What became of a row, run now or before. Raises DeviceGone, and what `job_of` raises of the row.

        Args:
            job_of: the job of an item. Raises ReplayError where its row does not tell the group that it needs.
            stops: whether no further row is to be begun.
        """
        if item.nodeid not in self._ready:
            items = [item] if item.nodeid in self._given else self._batch(item)
            self._run(items, executor, job_of, stops)
        self._given.add(item.nodeid)
        return self._ready.pop(item.nodeid)

    def left_over(self) -> dict[str, Outcome]:
        """Outcomes of rows whose turn never came, by node id."""
        return self._ready

    def _run(
        self,
        items: Sequence[pytest.Function],
        executor: BatchExecutor,
        job_of: Callable[[pytest.Function], Job],
        stops: Callable[[], bool],
    ) -> None:
        config = items[0].config
        jobs = [(items[0], job_of(items[0]))]
        for item in items[1:]:
            # A row that does not tell its group is refused at its own turn.
            with suppress(ReplayError):
                jobs.append((item, job_of(item)))
        launched = 0

        def enough(outcome: Outcome) -> bool:
            nonlocal launched
            launched += 1
            config.hook.pytest_opatlas_launched(launched=launched, of=len(items))
            # Where pytest stops after some failures, rows after the next failure may never be wanted.
            return stops() or (bool(config.option.maxfail) and outcome.launched is None)

        nodeids = {job.id: item.nodeid for item, job in jobs}
        outcomes = executor.run_all([job for _, job in jobs], enough)
        self._ready.update((nodeids[job_id], outcome) for job_id, outcome in outcomes.items())

    def _batch(self, item: pytest.Function) -> Sequence[pytest.Function]:
        """The rows from `item` to the end of its batch that are to be run."""
        items = item.session.items
        if not self._places:
            self._places = batches([other.nodeid for other in items], self._size)
        batch = self._places[item.nodeid]
        following = islice(items, items.index(item), None)
        return [
            other
            for other in takewhile(lambda other: self._places.get(other.nodeid) == batch, following)
            if isinstance(other, pytest.Function) and (other is item or will_run(other))
        ]


def batches(nodeids: Iterable[str], size: int) -> dict[str, int]:
    """Number of each item's batch, by node id: `size` items in a row."""
    return {nodeid: place // size for place, nodeid in enumerate(nodeids)}


def is_to_be_run(item: pytest.Item) -> bool:
    """Whether an item is a row of one device that its turn will run, unless one of its fixtures refuses."""
    return will_run(item) and not needs_group(item)


def will_run(item: pytest.Item) -> bool:
    """The same of a row of one device, or of a group."""
    row = row_of(item)
    if row is None or row.given_up or item.get_closest_marker("skip"):
        return False
    return all(mark.kwargs.get("run", True) for mark in item.iter_markers("xfail"))
