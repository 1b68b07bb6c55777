"""Executors: what runs jobs. In this process, on one of several devices, or from profiles that exist."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from opatlas.capture.profile_samples import ProfileMatcher
from opatlas.devices.device import DeviceDescription, DeviceSpec
from opatlas.devices.device_lock import LONGEST_WAIT_S, DeviceWaits, LockHolder
from opatlas.devices.discovery import device_environment
from opatlas.engine.job import Job, RowOutcome
from opatlas.errors import OpAtlasError
from opatlas.instruments.instrument import MeasureSettings
from opatlas.model.errors import DeviceGone
from opatlas.model.location import UNNAMED_NPU
from opatlas.model.schema import Status
from opatlas.store.csv_files import write_text
from opatlas.text import in_a_line


class Executor(Protocol):
    """Runs jobs one after the other on one device."""

    def describe(self) -> DeviceDescription:
        """The device, opened if it is not yet open. Raises DeviceGone where it cannot be opened."""
        ...

    def prepare(self) -> None:
        """Opens the device for the next job, if it is not open: that time is no row's. Raises DeviceGone."""
        ...

    def run(self, job: Job) -> RowOutcome:
        """Runs a job, to its end or to its deadline. Raises DeviceGone."""
        ...

    def close(self) -> None:
        """Gives the device up."""
        ...


@runtime_checkable
class BatchExecutor(Executor, Protocol):
    """One whose instrument tells durations only of many rows at once."""

    def run_all(self, jobs: Sequence[Job], enough: Callable[[RowOutcome], bool]) -> dict[int, RowOutcome]:
        """Runs jobs in their order; gives the outcomes of those that were run, at least one, by the job's id.

        Raises DeviceGone.

        Args:
            enough: told what became of each job, before its samples are known (`RowOutcome.pending`);
                whether no further job is to be run.
        """
        ...


class InProcessExecutor:
    """Runs bodies in this process, for debuggers and profilers; failures come through as raised."""

    def __init__(self, spec: DeviceSpec, settings: MeasureSettings, waits: DeviceWaits) -> None:
        """`waits` times the waits for the device. Raises DeviceGone where it cannot be opened."""
        self._waits = waits
        os.environ.update(device_environment(spec))
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

    def run(self, job: Job) -> RowOutcome:
        from opatlas.engine.device_errors import outcome_from_error

        def begin(holder: LockHolder) -> None:
            # Nothing interrupts the wait: whom it is for is told before.
            self._waits.announce(holder)
            self._waits.begin(holder)

        def end() -> None:
            if self._waits.current is not None:
                self._waits.current.end()

        if job.group is not None:
            return RowOutcome(Status.SKIPPED, f"needs a {job.group}, and --in-process is one process: leave it out")
        try:
            with self._waits, self._runner.locked(begin, end, LONGEST_WAIT_S):
                return self._runner.run_raising(job)
        except DeviceGone:
            raise
        except Exception as error:
            outcome = outcome_from_error(error)
            if outcome.status in (Status.UNSUPPORTED, Status.SKIPPED):
                # Nothing to debug: the device is the reason. A row that is refused may be the replay's mistake.
                return outcome
            raise

    def close(self) -> None:
        """The device goes with this process."""


_T = TypeVar("_T")


class ExcludedDevices:
    """The devices that a session does without, and why; known to all its processes through a folder."""

    def __init__(self, folder: Path | None) -> None:
        """`folder` is None where the session has one process."""
        self._folder = folder
        self._reasons: dict[int, str] = {}

    def add(self, spec: DeviceSpec, reason: str) -> None:
        """Leaves a device out from now on."""
        self._reasons[spec.index] = reason
        if self._folder is not None:
            # Where there is no room for it, the others find out by themselves.
            with contextlib.suppress(OpAtlasError):
                write_text(self._file(spec.index), reason)

    def reason(self, spec: DeviceSpec) -> str | None:
        """Why a device is left out; None where it is not."""
        if spec.index not in self._reasons and self._folder is not None and self._file(spec.index).exists():
            self._reasons[spec.index] = self._file(spec.index).read_text(encoding="utf-8")
        return self._reasons.get(spec.index)

    def _file(self, index: int) -> Path:
        assert self._folder is not None
        return self._folder / f"left-out-{index}"


class DevicePool:
    """A BatchExecutor that stays on its first device until that is gone, then moves on to the others.

    Where two processes of a session share a device then, their rows take turns.
    """

    def __init__(
        self, specs: Sequence[DeviceSpec], executor_of: Callable[[DeviceSpec], Executor], left_out: ExcludedDevices
    ) -> None:
        """
        Args:
            specs: the devices, the first one preferred.
            executor_of: makes the executor of one device, which opens it on first use.
            left_out: shared by all pools of the session.
        """
        self._specs = specs
        self._executor_of = executor_of
        self._left_out = left_out
        self._current: tuple[DeviceSpec, Executor] | None = None

    def describe(self) -> DeviceDescription:
        return self._on_a_device(lambda executor: executor.describe())

    def prepare(self) -> None:
        self._on_a_device(lambda executor: executor.prepare())

    def run(self, job: Job) -> RowOutcome:
        # An executor that raises DeviceGone has not run the job.
        return self._on_a_device(lambda executor: executor.run(job))

    def run_all(self, jobs: Sequence[Job], enough: Callable[[RowOutcome], bool]) -> dict[int, RowOutcome]:
        return self._on_a_device(
            lambda executor: (
                executor.run_all(jobs, enough)
                if isinstance(executor, BatchExecutor)
                else {jobs[0].id: executor.run(jobs[0])}
            )
        )

    def close(self) -> None:
        if self._current is not None:
            self._current[1].close()
            self._current = None

    def _on_a_device(self, use: Callable[[Executor], _T]) -> _T:
        """Raises DeviceGone where no device is left."""
        while True:
            spec, executor = self._device()
            try:
                return use(executor)
            except DeviceGone as error:
                self._left_out.add(spec, str(error))
                self.close()

    def _device(self) -> tuple[DeviceSpec, Executor]:
        if self._current is None:
            spec = next((spec for spec in self._specs if self._left_out.reason(spec) is None), None)
            if spec is None:
                reasons = dict.fromkeys(self._left_out.reason(spec) or "" for spec in self._specs)
                raise DeviceGone(("no device is left: " if len(self._specs) > 1 else "") + "; ".join(reasons))
            self._current = spec, self._executor_of(spec)
        return self._current


class ProfileExecutor:
    """An Executor that looks rows up instead of running them."""

    def __init__(self, samples: ProfileMatcher, device: str) -> None:
        """`device`: name of the one that was profiled; "" where nobody said."""
        self._samples = samples
        profile = samples.profile
        facts: dict[str, str | int | float] = {
            "profile": profile.root.name,
            "summaries": len(profile.files),
            "launches": profile.account.ingested,
        }
        self._description = DeviceDescription(device or UNNAMED_NPU, facts, kind="npu")

    def describe(self) -> DeviceDescription:
        """What was profiled."""
        return self._description

    def prepare(self) -> None:
        """There is no device to open."""

    def run(self, job: Job) -> RowOutcome:
        """The samples of the job's row; skipped where there are none."""
        found = self._samples.of_row(job.kernel_type, job.cells)
        if isinstance(found, str):
            return RowOutcome(Status.SKIPPED, found)
        return RowOutcome(Status.MEASURED, found.remark, measurement=found.measurement)

    def close(self) -> None:
        """Nothing is held."""
