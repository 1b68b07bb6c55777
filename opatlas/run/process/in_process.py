"""Runs jobs in pytest's own process (--in-process). Imports torch when the device is opened."""

from __future__ import annotations

import os

from opatlas.errors import OpAtlasError
from opatlas.row.errors import DeviceGone
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription, DeviceSpec, device_environment
from opatlas.run.devices.device_lock import LONGEST_WAIT_S, DeviceWaits, LockHolder
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.job import Job, RowOutcome
from opatlas.text import exception_line


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
            from opatlas.run.runner import Runner

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
        from opatlas.run.device_errors import outcome_from_error

        def begin(holder: LockHolder) -> None:
            # Announced before the wait, because nothing runs in this process during the wait.
            self._waits.announce(holder)
            self._waits.begin(holder)

        def end() -> None:
            if self._waits.current is not None:
                self._waits.current.end()

        if job.group is not None:
            return RowOutcome(Status.SKIPPED, f"needs a {job.group}, but --in-process is one process: omit the option")
        try:
            with self._waits, self._runner.locked(begin, end, LONGEST_WAIT_S):
                return self._runner.run_raising(job)
        except DeviceGone:
            raise
        except Exception as error:
            outcome = outcome_from_error(error)
            if outcome.status in (Status.UNSUPPORTED, Status.SKIPPED):
                # The device caused the error, so a debugger does not help. A refused row may be an error of the replay.
                return outcome
            raise

    def close(self) -> None:
        """Does nothing: the device is released when this process ends."""
