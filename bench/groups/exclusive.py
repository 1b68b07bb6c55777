"""Either one device or a group of them: rows of a group run when no process of one device holds one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile

from bench.executor import BatchExecutor
from bench.groups.pool import GroupPool
from bench.job import DeviceDescription, Job, Outcome
from database.schema import Status


class OneAtATime:
    """A BatchExecutor of jobs of both kinds, which closes the one before it opens the other.

    Jobs come in an order in which that happens once (plugins/exclusive.py); any order is right.
    """

    def __init__(self, single: BatchExecutor, groups: GroupPool) -> None:
        self._single = single
        self._groups = groups
        self._current: BatchExecutor = single

    def describe(self) -> DeviceDescription:
        return self._current.describe()

    def prepare(self) -> None:
        self._current.prepare()

    def run(self, job: Job) -> Outcome:
        return self.run_all([job], lambda outcome: True)[job.id]

    def run_all(self, jobs: Sequence[Job], enough: Callable[[Outcome], bool]) -> dict[int, Outcome]:
        """As in BatchExecutor: of the jobs those at the beginning that are all of one device, or all of groups."""
        group = jobs[0].group
        if group is not None and (reason := self._groups.too_few_for(group)):
            return {jobs[0].id: Outcome(Status.SKIPPED, reason)}
        executor = self._single if group is None else self._groups
        self._use(executor)
        return executor.run_all(list(takewhile(lambda job: (job.group is None) == (group is None), jobs)), enough)

    def close(self) -> None:
        self._current.close()

    def _use(self, executor: BatchExecutor) -> None:
        if executor is not self._current:
            self._current.close()
            self._current = executor
