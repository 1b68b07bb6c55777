"""Defines executors, which run jobs one after the other, or many together."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from opatlas.run.devices.device import DeviceDescription
from opatlas.run.job import Job, RowOutcome


class Executor(Protocol):
    """Runs jobs one after the other on one device."""

    def describe(self) -> DeviceDescription:
        """Returns the device's description; opens the device if necessary. Raises DeviceGone if that fails."""
        ...

    def prepare(self) -> None:
        """Opens the device if necessary, so that no row's deadline includes it. Raises DeviceGone if that fails."""
        ...

    def run(self, job: Job) -> RowOutcome:
        """Runs a job to its end or deadline. Raises DeviceGone if no device can run it."""
        ...

    def close(self) -> None:
        """Releases the device."""
        ...


@runtime_checkable
class BatchExecutor(Executor, Protocol):
    """An executor whose instrument measures many rows together."""

    def run_all(self, jobs: Sequence[Job], enough: Callable[[RowOutcome], bool]) -> dict[int, RowOutcome]:
        """Runs jobs in their order, and returns the outcomes of the jobs that ran, at least one, by the job's id.

        Args:
            jobs: the jobs.
            enough: called with each outcome, whose samples may still be pending; returns whether to stop.

        Raises:
            DeviceGone: no job could be run.
        """
        ...


def run_job(executor: Executor, job: Job, language: str = "") -> RowOutcome:
    """Runs a job, or lets its judge run it. Raises the errors of the executor.

    Args:
        language: the language that judged kernels must have ("triton", "cuda"); "": any.
    """
    if not job.judge:
        return executor.run(job)
    run: Callable[[Callable[[Job], RowOutcome], Job, str], RowOutcome] = pkgutil.resolve_name(job.judge)
    return run(executor.run, job, language)
