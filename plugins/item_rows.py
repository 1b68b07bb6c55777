"""Runs rows by their tests: each when pytest reaches it, or many together ahead of pytest."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from itertools import islice, takewhile
from typing import Protocol

import pytest

from opatlas.row.errors import ReplayError
from opatlas.run.devices.device import DeviceDescription
from opatlas.run.job import Job, RowOutcome
from opatlas.run.process.executor import BatchExecutor, Executor, run_job

from .cases import will_run
from .pytest_internals import take_output

#: Returns the job of an item. Raises ReplayError for a row that is refused.
JobOf = Callable[[pytest.Function], Job]


class ItemRows(Protocol):
    """Runs the rows of a session by their tests.

    Attributes:
        runs_ahead: whether rows run before pytest reaches their tests.
    """

    runs_ahead: bool

    def describe(self) -> DeviceDescription:
        """Returns the device of the row that pytest asked for last; opens a device if necessary. Raises DeviceGone."""
        ...

    def prepare(self) -> None:
        """Opens the device if necessary, so that no row's deadline includes it. Raises DeviceGone if that fails."""
        ...

    def outcome(self, item: pytest.Function) -> RowOutcome:
        """Returns the outcome of a row, which runs now or ran before; a row that pytest runs again runs anew.

        Raises:
            DeviceGone: there is no device.
            ReplayError: the row is refused.
        """
        ...

    def unreached(self) -> dict[str, RowOutcome]:
        """Ends what runs ahead. Returns the outcomes of rows that pytest has not reached, by node id."""
        ...

    def close(self) -> None:
        """Releases the device."""
        ...


class RowsInTurn:
    """Runs each row when pytest reaches it."""

    runs_ahead = False

    def __init__(self, executor: Executor, job_of: JobOf) -> None:
        self._executor = executor
        self._job_of = job_of

    def describe(self) -> DeviceDescription:
        return self._executor.describe()

    def prepare(self) -> None:
        self._executor.prepare()

    def outcome(self, item: pytest.Function) -> RowOutcome:
        return run_job(self._executor, self._job_of(item))

    def unreached(self) -> dict[str, RowOutcome]:
        return {}

    def close(self) -> None:
        self._executor.close()


class RowsInBatches(RowsInTurn):
    """Runs rows in batches ahead of pytest, for an instrument that gives durations only of many rows at once."""

    runs_ahead = True

    def __init__(
        self,
        executor: BatchExecutor,
        job_of: JobOf,
        items: Sequence[pytest.Item],
        size: int,
        on_launched: Callable[[], None],
        stops: Callable[[], bool],
    ) -> None:
        """
        Args:
            items: the tests of the session.
            size: the most rows of a batch.
            on_launched: called when a row of the batch has run.
            stops: returns whether no further row may start.
        """
        super().__init__(executor, job_of)
        self._run_all = executor.run_all
        self._items = items
        self._on_launched = on_launched
        self._stops = stops
        self._places = batches([item.nodeid for item in items], size)
        #: By node id.
        self._ready: dict[str, RowOutcome] = {}
        #: Node ids of rows whose outcomes pytest has. If a plugin runs such a row again, the row runs without a batch.
        self._given: set[str] = set()

    def outcome(self, item: pytest.Function) -> RowOutcome:
        if item.nodeid not in self._ready:
            self._run([item] if item.nodeid in self._given else self._batch(item))
        self._given.add(item.nodeid)
        return self._ready.pop(item.nodeid)

    def unreached(self) -> dict[str, RowOutcome]:
        return self._ready

    def _run(self, items: Sequence[pytest.Function]) -> None:
        config = items[0].config
        jobs = [(items[0], self._job_of(items[0]))]
        for item in items[1:]:
            # A row that is refused here is refused again, with its reason, when pytest reaches it.
            with contextlib.suppress(ReplayError):
                jobs.append((item, self._job_of(item)))
        launched = 0

        def enough(outcome: RowOutcome) -> bool:
            nonlocal launched
            # Otherwise the row for which pytest waits had the output of the whole batch.
            take_output(jobs[launched][0])
            launched += 1
            self._on_launched()
            # With --maxfail pytest may never reach the rows after the next failure.
            return self._stops() or (bool(config.option.maxfail) and outcome.pending is None)

        nodeids = {job.id: item.nodeid for item, job in jobs}
        outcomes = self._run_all([job for _, job in jobs], enough)
        self._ready.update((nodeids[job_id], outcome) for job_id, outcome in outcomes.items())

    def _batch(self, item: pytest.Function) -> Sequence[pytest.Function]:
        """Returns the rows to run, from `item` to the end of its batch."""
        batch = self._places[item.nodeid]
        following = islice(self._items, self._items.index(item), None)
        return [
            other
            for other in takewhile(lambda other: self._places.get(other.nodeid) == batch, following)
            if isinstance(other, pytest.Function) and (other is item or will_run(other))
        ]


def batches(nodeids: Iterable[str], size: int) -> dict[str, int]:
    """Returns the number of each item's batch, by node id: `size` consecutive items make a batch."""
    return {nodeid: place // size for place, nodeid in enumerate(nodeids)}
