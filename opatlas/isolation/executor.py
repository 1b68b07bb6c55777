"""Where the body of a replay runs: in a device process, or right here. No torch on this side."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from opatlas.devices.device_lock import LONGEST_WAIT_S, DeviceWaits, LockHolder
from opatlas.devices.discovery import environment_of
from opatlas.engine.errors import DeviceGone
from opatlas.engine.job import (
    DeviceDescription,
    DeviceSpec,
    Job,
    MeasureSettings,
    Outcome,
)
from opatlas.errors import OpAtlasError
from opatlas.model.schema import Status
from opatlas.text import in_a_line

#: The name under which fixtures find the session, and its `executor()`, without importing its class.
SESSION = "opatlas-session"


class Executor(Protocol):
    """Runs jobs one after the other on one device."""

    def describe(self) -> DeviceDescription:
        """The device, opened if it is not yet open. Raises DeviceGone where it cannot be opened."""
        ...

    def prepare(self) -> None:
        """Opens the device for the next job, if it is not open: that time is no row's. Raises DeviceGone."""
        ...

    def run(self, job: Job) -> Outcome:
        """Runs a job, to its end or to its deadline. Raises DeviceGone."""
        ...

    def close(self) -> None:
        """Gives the device up."""
        ...


@runtime_checkable
class BatchExecutor(Executor, Protocol):
    """One whose instrument tells durations only of many rows at once."""

    def run_all(self, jobs: Sequence[Job], enough: Callable[[Outcome], bool]) -> dict[int, Outcome]:
        """Runs jobs in their order; gives the outcomes of those that were run, at least one, by the job's id.

        Raises DeviceGone.

        Args:
            enough: told what became of each job, before its samples are known (`Outcome.launched`);
                whether no further job is to be run.
        """
        ...


class InProcess:
    """Runs bodies in this process, for debuggers and profilers; failures come through as raised."""

    def __init__(self, spec: DeviceSpec, settings: MeasureSettings, waits: DeviceWaits) -> None:
        """`waits` times the waits for the device. Raises DeviceGone where it cannot be opened."""
        self._waits = waits
        os.environ.update(environment_of(spec))
        try:
            from opatlas.engine.runner import Runner

            self._runner = Runner(spec, settings)
        except OpAtlasError as error:
            raise DeviceGone(str(error)) from None
        except Exception as error:
            # torch is not there, or its runtime refuses the device.
            raise DeviceGone(f"{spec} cannot be opened: {in_a_line(error)}") from error
        self._description = self._runner.describe()

    def describe(self) -> DeviceDescription:
        return self._description

    def prepare(self) -> None:
        """The device is open from the start."""

    def run(self, job: Job) -> Outcome:
        from opatlas.engine.device_errors import outcome_of

        def begin(holder: LockHolder) -> None:
            # Nothing interrupts the wait: whom it is for is told before.
            self._waits.tell_of(holder)
            self._waits.begin(holder)

        def end() -> None:
            if self._waits.current is not None:
                self._waits.current.end()

        if job.group is not None:
            return Outcome(Status.SKIPPED, f"needs a {job.group}, and --in-process is one process: leave it out")
        try:
            with self._waits, self._runner.locked(begin, end, LONGEST_WAIT_S):
                return self._runner.run_raising(job)
        except DeviceGone:
            raise
        except Exception as error:
            outcome = outcome_of(error)
            if outcome.status in (Status.UNSUPPORTED, Status.SKIPPED):
                # Nothing to debug: the device is the reason. A row that is refused may be the replay's mistake.
                return outcome
            raise

    def close(self) -> None:
        """The device goes with this process."""
