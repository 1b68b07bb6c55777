"""Either one device or a group of them: rows of a group run when no process of one device holds one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.executor import BatchExecutor, Executor
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
        self._current: Executor = single

    def describe(self) -> DeviceDescription:
        return self._current.describe()

    def prepare(self) -> None:
        self._current.prepare()

    def run(self, job: Job) -> Outcome:
        if job.group is not None and (reason := self._groups.too_few_for(job.group)):
            return Outcome(Status.SKIPPED, reason)
        self._use(self._single if job.group is None else self._groups)
        return self._current.run(job)

    def run_all(self, jobs: Sequence[Job], enough: Callable[[Outcome], bool]) -> dict[int, Outcome]:
        """Of jobs of one device."""
        self._use(self._single)
        return self._single.run_all(jobs, enough)

    def close(self) -> None:
        self._current.close()

    def _use(self, executor: Executor) -> None:
        if executor is not self._current:
            self._current.close()
            self._current = executor
