"""Where the body of a replay runs: in a device process, or right here. No torch on this side."""

from __future__ import annotations

from typing import Protocol

from bench.job import DeviceDescription, DeviceSpec, Job, MeasureSettings, Outcome


class Executor(Protocol):
    """Runs jobs one after the other on one device."""

    def describe(self) -> DeviceDescription:
        """The device, opened if it is not yet open. Raises OpAtlasError where it cannot be opened."""
        ...

    def run(self, job: Job) -> Outcome:
        """Runs a job, to its end or to its deadline. Raises OpAtlasError where there is no device any more."""
        ...

    def close(self) -> None:
        """Gives the device up."""
        ...


class InProcess:
    """Runs bodies in this process, for debuggers and profilers; what they raise comes through."""

    def __init__(self, spec: DeviceSpec, settings: MeasureSettings) -> None:
        from bench.runner import Runner

        self._runner = Runner(spec, settings)

    def describe(self) -> DeviceDescription:
        return self._runner.describe()

    def run(self, job: Job) -> Outcome:
        return self._runner.run_raising(job)

    def close(self) -> None:
        """The device goes with this process."""
