"""Defines executors, which run jobs: in this process, on one of several devices, or from existing profiles."""

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
from opatlas.text import exception_line


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
            enough: called with each outcome, whose samples may still be pending; returns whether to stop here.

        Raises:
            DeviceGone: no job could be run.
        """
        ...


class InProcessExecutor:
    """Runs replays in this process, for debuggers and profilers. Exceptions of a replay are raised unchanged."""

    def __init__(self, spec: DeviceSpec, settings: MeasureSettings, waits: DeviceWaits) -> None:
        """Opens the device.

        Args:
            spec: the device.
            settings: how rows are measured.
            waits: measures the waits for the device.

        Raises:
            DeviceGone: the device cannot be opened.
        """
        self._waits = waits
        os.environ.update(device_environment(spec))
        try:
            from opatlas.engine.runner import Runner

            self._runner = Runner(spec, settings)
        except OpAtlasError as error:
            raise DeviceGone(str(error)) from None
        except Exception as error:
            # torch is missing, or its runtime refuses the device.
            raise DeviceGone(f"{spec} cannot be opened: {exception_line(error)}") from error
        self._description = self._runner.describe()

    def describe(self) -> DeviceDescription:
        return self._description

    def prepare(self) -> None:
        """Does nothing: the device is open."""

    def run(self, job: Job) -> RowOutcome:
        from opatlas.engine.device_errors import outcome_from_error

        def begin(holder: LockHolder) -> None:
            # Announced before the wait, because nothing runs in this process during the wait.
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
                # Caused by the device, so there is nothing to debug. A refused row may be a mistake of the replay.
                return outcome
            raise

    def close(self) -> None:
        """Does nothing: the device is released when this process ends."""


_T = TypeVar("_T")


class ExcludedDevices:
    """The devices that a session no longer uses, with the reasons. A folder shares them between its processes."""

    def __init__(self, folder: Path | None) -> None:
        """`folder` is None if the session has only one process."""
        self._folder = folder
        self._reasons: dict[int, str] = {}

    def add(self, spec: DeviceSpec, reason: str) -> None:
        """Excludes a device from now on."""
        self._reasons[spec.index] = reason
        if self._folder is not None:
            # If the disk is full, the other processes find out by themselves.
            with contextlib.suppress(OpAtlasError):
                write_text(self._file(spec.index), reason)

    def reason(self, spec: DeviceSpec) -> str | None:
        """Returns why a device is excluded; None if it is not."""
        if spec.index not in self._reasons and self._folder is not None and self._file(spec.index).exists():
            self._reasons[spec.index] = self._file(spec.index).read_text(encoding="utf-8")
        return self._reasons.get(spec.index)

    def _file(self, index: int) -> Path:
        assert self._folder is not None
        return self._folder / f"left-out-{index}"


class DevicePool:
    """A BatchExecutor that uses its first device, and after its failure the next one.

    If two processes of a session then use the same device, their rows run one at a time.
    """

    def __init__(
        self, specs: Sequence[DeviceSpec], executor_of: Callable[[DeviceSpec], Executor], left_out: ExcludedDevices
    ) -> None:
        """
        Args:
            specs: the devices; the first one is preferred.
            executor_of: creates the executor of a device, which opens the device on first use.
            left_out: the excluded devices, shared by all pools of the session.
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
        # After DeviceGone the job has not run.
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
        """Applies `use` to the executor of a working device. Raises DeviceGone if no device is left."""
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
    """An Executor that looks up rows in existing profiles (--prof-path). Uses no device, no process and no torch."""

    def __init__(self, samples: ProfileMatcher, device: str) -> None:
        """`device` is the name of the profiled device; "" if it is not known."""
        self._samples = samples
        profile = samples.profile
        facts: dict[str, str | int | float] = {
            "profile": profile.root.name,
            "summaries": len(profile.files),
            "launches": profile.account.ingested,
        }
        self._description = DeviceDescription(device or UNNAMED_NPU, facts, kind="npu")

    def describe(self) -> DeviceDescription:
        """Returns facts about the profile."""
        return self._description

    def prepare(self) -> None:
        """Does nothing: there is no device to open."""

    def run(self, job: Job) -> RowOutcome:
        """Returns the samples of the job's row; a skipped outcome if there are none."""
        found = self._samples.of_row(job.kernel_type, job.cells)
        if isinstance(found, str):
            return RowOutcome(Status.SKIPPED, found)
        return RowOutcome(Status.MEASURED, found.remark, measurement=found.measurement)

    def close(self) -> None:
        """Does nothing: there is nothing to release."""
