"""The executor of rows that need a group: launches the group of each row, one group at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile

from opatlas.row.errors import DeviceGone, GroupTimeout
from opatlas.row.status import Status
from opatlas.run.devices.device import DeviceDescription, DeviceSpec, kind_named
from opatlas.run.group_spec import GroupSpec
from opatlas.run.groups.nodes import GroupNodes
from opatlas.run.groups.process import GroupProcess
from opatlas.run.instruments.instrument import (
    MSPROF,
    TORCH_NPU_PROFILER,
    MeasureSettings,
)
from opatlas.run.job import Job, RowOutcome
from opatlas.run.process.device_pool import ExcludedDevices
from opatlas.run.process.executor import BatchExecutor, Executor

#: A group that has failed to start so often is given up. After a timeout, which may take minutes, a group is given up
#: at once.
_MOST_FAILED_STARTS = 2
_NO_PROFILER = (
    f"--instrument {TORCH_NPU_PROFILER} starts and stops CANN's profiler for each row, which ends the processes of a "
    f"group: leave it out ({MSPROF} runs around each rank), or name npu-events"
)


class GroupPool:
    """Runs jobs in the groups that they name. A BatchExecutor."""

    def __init__(
        self,
        nodes: GroupNodes,
        settings: MeasureSettings,
        excluded: ExcludedDevices,
        executor_of: Callable[[GroupSpec, Sequence[DeviceSpec], MeasureSettings], Executor] = GroupProcess,
    ) -> None:
        """
        Args:
            nodes: where the groups run, with the devices of this node.
            excluded: devices that the session does not use.
            executor_of: makes the executor of a group.
        """
        self._nodes = nodes
        self._settings = settings
        self._excluded = excluded
        self._executor_of = executor_of
        self._current: tuple[GroupSpec, Executor] | None = None
        self._description: DeviceDescription | None = None
        self._failed_starts: Counter[GroupSpec] = Counter()
        #: Groups that are not tried again, and why they did not start.
        self._given_up: dict[GroupSpec, str] = {}
        #: Why no group of several nodes is tried again; "" if they are.
        self._nodes_absent = ""
        #: Which instrument replaces the default one, and why; "" if none does.
        self._fallback = ""

    def describe(self) -> DeviceDescription:
        """Returns the description of the last group; before the first launch, of the device without opening it."""
        if self._description is None:
            device = self._nodes.devices[0]
            return DeviceDescription(device.name or device.kind, {}, kind=device.kind)
        return self._description

    def prepare(self) -> None:
        """Does nothing: each job names its group."""

    def run(self, job: Job) -> RowOutcome:
        return self.run_all([job], lambda outcome: True)[job.id]

    def run_all(self, jobs: Sequence[Job], enough: Callable[[RowOutcome], bool]) -> dict[int, RowOutcome]:
        """Runs the first jobs that need the same group, as BatchExecutor says."""
        first = jobs[0]
        assert first.group is not None
        spec = self._nodes.placed(first.group)
        if reason := self._nodes.shortage(spec, self._working):
            return {first.id: RowOutcome(Status.SKIPPED, reason)}
        if self._settings.instrument == TORCH_NPU_PROFILER:
            return {first.id: RowOutcome(Status.SKIPPED, _NO_PROFILER)}
        if given_up := self._given_up.get(spec) or (spec.nnodes > 1 and self._nodes_absent):
            return {first.id: RowOutcome(Status.SKIPPED, f"not tried again: {given_up}")}
        if self._current is None or not self._current[0].serves(spec):
            self.close()
            devices = self._nodes.devices_of(spec, self._working)
            self._current = spec, self._executor_of(spec, devices, self._settings_for(devices[0].kind))
        group, executor = self._current
        try:
            if isinstance(executor, BatchExecutor):
                served = takewhile(
                    lambda job: job.group is not None and group.serves(self._nodes.placed(job.group)), jobs
                )

                def described(outcome: RowOutcome) -> bool:
                    self._description = executor.describe()
                    return enough(outcome)

                outcomes = executor.run_all(list(served), described)
            else:
                outcomes = {first.id: executor.run(first)}
            self._description = executor.describe()
        except DeviceGone as error:
            self.close()
            self._failed_starts[spec] += 1
            if isinstance(error, GroupTimeout) or self._failed_starts[spec] >= _MOST_FAILED_STARTS:
                self._given_up[spec] = str(error)
            if isinstance(error, GroupTimeout) and error.nodes:
                self._nodes_absent = str(error)
            return {first.id: RowOutcome(Status.DEVICE_ERROR, str(error))}
        self._failed_starts[spec] = 0
        return {job_id: self._with_fallback(outcome) for job_id, outcome in outcomes.items()}

    def shortage(self, spec: GroupSpec) -> str:
        """Returns why there is no device for each rank of a group; "" if there is."""
        return self._nodes.shortage(self._nodes.placed(spec), self._working)

    def close(self) -> None:
        if self._current is not None:
            self._current[1].close()
            self._current = None

    @property
    def _working(self) -> Sequence[DeviceSpec]:
        return [device for device in self._nodes.devices if self._excluded.reason(device) is None]

    def _settings_for(self, kind: str) -> MeasureSettings:
        device_kind, named = kind_named(kind), self._settings.instrument
        if not device_kind.instruments or device_kind.preferred_instrument(named) != MSPROF:
            return self._settings
        chosen = device_kind.group_instrument(named)
        self._fallback = f"msprof is not on PATH: {chosen} in its place" if chosen != MSPROF else ""
        return replace(self._settings, instrument=chosen)

    def _with_fallback(self, outcome: RowOutcome) -> RowOutcome:
        """Returns the outcome with a remark if another instrument than the default took the samples."""
        if not self._fallback or outcome.measurement is None:
            return outcome
        assumptions = (*outcome.measurement.assumptions, self._fallback)
        return replace(outcome, measurement=replace(outcome.measurement, assumptions=assumptions))


class ExclusiveExecutor:
    """Runs jobs of one device and jobs of groups, and closes one executor before it opens the other. A BatchExecutor.

    The order of the jobs (plugins/scheduling.py) makes this happen once, but any order works.
    """

    def __init__(self, single: BatchExecutor, groups: GroupPool) -> None:
        self._single = single
        self._groups = groups
        self._current: BatchExecutor = single

    def describe(self) -> DeviceDescription:
        return self._current.describe()

    def prepare(self) -> None:
        self._current.prepare()

    def run(self, job: Job) -> RowOutcome:
        return self.run_all([job], lambda outcome: True)[job.id]

    def run_all(self, jobs: Sequence[Job], enough: Callable[[RowOutcome], bool]) -> dict[int, RowOutcome]:
        """Runs the first jobs that all need one device, or all need a group, as BatchExecutor says."""
        group = jobs[0].group
        if group is not None and (reason := self._groups.shortage(group)):
            return {jobs[0].id: RowOutcome(Status.SKIPPED, reason)}
        executor = self._single if group is None else self._groups
        self._use(executor)
        return executor.run_all(list(takewhile(lambda job: (job.group is None) == (group is None), jobs)), enough)

    def close(self) -> None:
        self._current.close()

    def _use(self, executor: BatchExecutor) -> None:
        if executor is not self._current:
            self._current.close()
            self._current = executor
