"""Runs the bodies of replay functions on a device, in the device process or, with `--in-process`, in pytest itself."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import torch

from opatlas.errors import OpAtlasError
from opatlas.row.errors import DeviceUnhealthy, MissingPrecondition, ReplayError
from opatlas.row.roofline import Peak, bound_us, device_peak, row_work
from opatlas.row.status import Status
from opatlas.run.devices.device import Device, DeviceDescription, DeviceSpec, open_device
from opatlas.run.devices.device_lock import LockHolder
from opatlas.run.group import ALONE, Group, SynchronizedInstrument
from opatlas.run.inputs.replay_row import ReplayRow
from opatlas.run.inputs.row_slots import RowSlots
from opatlas.run.instruments.instrument import Instrument, MeasureSettings
from opatlas.run.job import Job, RowOutcome, outcome_of, translated_pytest_exceptions
from opatlas.run.process_state import OF_LIBRARIES, ProcessState, changes
from opatlas.run.registry import Binding, ReplaySpec, load_function, replay_spec, select_arguments
from opatlas.run.replay import Replay


def _nothing() -> None:
    pass


def _bind_kernel(
    job: Job, spec: ReplaySpec, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group
) -> tuple[ReplayRow, Replay]:
    row = ReplayRow(job.kernel_type, job.cells, device.torch_device)
    return row, Replay(row, spec, device, instrument, settings, group, job.source)


class Runner:
    """Owns an open device and runs jobs on it, one at a time."""

    def __init__(self, spec: DeviceSpec, settings: MeasureSettings) -> None:
        """Opens the device. Raises OpAtlasError if that fails, or if the device lacks the requested instrument."""
        self._device: Device = open_device(spec, settings)
        self._kind = spec.kind
        self._instrument = self._device.instrument()
        if settings.instrument not in (None, self._instrument.name):
            raise OpAtlasError(
                f"--instrument {settings.instrument}: {spec} measures with {self._instrument.name}: give that name, "
                f"or leave the option out"
            )
        self._settings = settings
        # Described once, because the description of an NPU runs its vendor's tools.
        self._description = self._device.describe()
        self._peak = device_peak(self._description.name)
        self._group = ALONE
        self._state = ProcessState(self.torch_device.type)
        #: Changes of the process's state by all rows so far.
        self._changed: list[str] = []
        #: The same changes, as the outcome of the last row lists them.
        self._reported: tuple[str, ...] = ()

    @property
    def torch_device(self) -> torch.device:
        """Returns the device on which the tensors of rows are created."""
        return self._device.torch_device

    def join(self, group: Group) -> None:
        """Makes this process a rank of a group, which runs each job together with the other ranks."""
        self._group = group
        self._instrument = SynchronizedInstrument(self._instrument, group)

    def describe(self) -> DeviceDescription:
        """Returns the description of the device when it was opened."""
        return replace(self._description, kind=self._description.kind or self._kind)

    def probe(self) -> None:
        """Runs an operation with a known result on the device. Raises DeviceUnhealthy if it fails."""
        try:
            self._device.probe()
        except DeviceUnhealthy:
            raise
        except Exception as error:
            raise DeviceUnhealthy(f"{type(error).__name__}: {error}") from error

    def is_healthy(self) -> bool:
        """Returns whether the device still computes correct results."""
        try:
            self.probe()
        except DeviceUnhealthy:
            return False
        return True

    def locked(
        self,
        when_waiting: Callable[[LockHolder], None],
        when_taken: Callable[[], None] = _nothing,
        limit_s: float | None = None,
    ) -> AbstractContextManager[object]:
        """Returns a context that holds the device's lock while a job runs; see `Device.locked`."""
        return self._device.locked(when_waiting, when_taken, limit_s)

    def run(self, job: Job) -> RowOutcome:
        """Runs a job, and turns its exceptions into an outcome."""
        try:
            return self.run_raising(job)
        except BaseException as error:
            outcome = outcome_of(error, self._reported)
        if outcome.status is Status.OOM:
            # The exception's frames, which referenced the row's tensors, no longer exist here.
            self._device.release_memory()
        return outcome

    def run_raising(self, job: Job) -> RowOutcome:
        """Runs a job, and raises its exceptions unchanged, for debuggers."""
        earlier, before = [f"an earlier row {change}" for change in self._changed], self._state.read()
        try:
            outcome = self._run_body(job)
        finally:
            is_library = job.source is not None and bool(job.source.module)
            after = self._state.read()
            found = changes(before, after, without=OF_LIBRARIES if is_library else ())
            own = [f"changed {change}" for change in found]
            self._changed += own
            self._reported = (*earlier, *own)
        return replace(outcome, changed=self._reported)

    def refused(self, job: Job) -> RowOutcome | None:
        """Returns the outcome of a job that cannot run because of its cells or instrument; None if the job can run."""
        try:
            self._expect_instrument(job)
            # Parses the cells of all slots.
            RowSlots(job.kernel_type, job.cells).bytes()
        except ReplayError as error:
            return outcome_of(error)
        return None

    def _expect_instrument(self, job: Job) -> None:
        """Raises MissingPrecondition if another instrument measured the stored duration."""
        if job.instrument not in ("", self._instrument.name):
            # Checked only here, because the default instrument depends on this machine.
            raise MissingPrecondition(
                f"the stored duration was measured with {job.instrument}, and this device measures with "
                f"{self._instrument.name}, whose durations do not compare: set {job.instrument} up (`opatlas doctor` "
                f"shows missing parts), or allow mixed durations (--mixed)"
            )

    def _run_body(self, job: Job) -> RowOutcome:
        self._expect_instrument(job)
        function = load_function(job)
        spec = replay_spec(function)
        if spec is None:
            raise TypeError(f"{job.module}.{job.function} is not marked with @replays")
        bind: Binding = spec.binding or _bind_kernel
        row, replay = bind(job, spec, self._device, self._instrument, self._settings, self._group)
        replay.expect_memory()
        with torch.no_grad(), replay.bounded_memory(), translated_pytest_exceptions():
            function(**select_arguments(function, row=row, replay=replay, group=self._group))
        if replay.outcome is None:
            raise ReplayError(f"{job.function} returned and did not call replay(...)")
        return self._with_bound(job, replay.outcome)

    def _with_bound(self, job: Job, outcome: RowOutcome) -> RowOutcome:
        """Adds the shortest possible time, given the device's peaks, to the measurement."""
        measurement = outcome.measurement
        if measurement is None or self._peak == Peak():
            return outcome
        work = row_work(job.kernel_type, job.cells)
        if work is None:
            return outcome
        bound = bound_us(work, self._peak, cold=self._settings.cache == "cold")
        return replace(outcome, measurement=replace(measurement, bound_us=bound))
