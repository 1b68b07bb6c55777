"""Runs jobs on one of several devices, and excludes devices that fail from the session."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from opatlas.data.csv_files import write_text
from opatlas.errors import OpAtlasError
from opatlas.row.errors import DeviceGone
from opatlas.run.devices.device import DeviceDescription, DeviceSpec
from opatlas.run.job import Job, RowOutcome
from opatlas.run.process.executor import BatchExecutor, Executor

_T = TypeVar("_T")


class ExcludedDevices:
    """The devices that a session no longer uses, with reasons. A folder shares the devices between processes."""

    def __init__(self, folder: Path | None) -> None:
        """`folder` is None if the session has only one process."""
        self._folder = folder
        self._reasons: dict[int, str] = {}

    def add(self, spec: DeviceSpec, reason: str) -> None:
        """Excludes a device from now on."""
        self._reasons[spec.index] = reason
        if self._folder is not None:
            # If the disk is full, the other processes detect the failure of the device themselves.
            with contextlib.suppress(OpAtlasError):
                write_text(self._file(spec.index), reason)

    def reason(self, spec: DeviceSpec) -> str | None:
        """Returns why a device is excluded; None for a device that is not excluded."""
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
        self, specs: Sequence[DeviceSpec], executor_of: Callable[[DeviceSpec], Executor], excluded: ExcludedDevices
    ) -> None:
        """
        Args:
            specs: the devices; the first one is preferred.
            executor_of: creates the executor of a device, which opens the device on first use.
            excluded: the excluded devices, shared by all pools of the session.
        """
        self._specs = specs
        self._executor_of = executor_of
        self._excluded = excluded
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
                self._excluded.add(spec, str(error))
                self.close()

    def _device(self) -> tuple[DeviceSpec, Executor]:
        if self._current is None:
            spec = next((spec for spec in self._specs if self._excluded.reason(spec) is None), None)
            if spec is None:
                reasons = dict.fromkeys(self._excluded.reason(spec) or "" for spec in self._specs)
                raise DeviceGone(("no device is left: " if len(self._specs) > 1 else "") + "; ".join(reasons))
            self._current = spec, self._executor_of(spec)
        return self._current
