"""Rows that need a group: the nodes that groups run on, and the scheduler that launches one group at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from opatlas.errors import OpAtlasError
from opatlas.row.errors import DeviceGone, GroupTimeout, MissingPrecondition
from opatlas.run.devices.device import DeviceDescription, DeviceSpec, kind_named
from opatlas.run.devices.system import available_cores
from opatlas.run.group import GroupSpec
from opatlas.run.instruments.instrument import MSPROF, MeasureSettings
from opatlas.run.job import GroupGone, Job
from opatlas.run.process.device_process import GroupProcess
from opatlas.run.scheduler import Done, ExcludedDevices, Relay, Scheduler

#: A group that has failed to start so often is given up. After a timeout, which may take minutes, a group is given up
#: at once.
_MOST_FAILED_STARTS = 2


#: Default number of ranks that share a CPU: enough to try a kernel that communicates.
_CPU_RANKS = 2
#: With more ranks on a core, durations would show how the system shares its cores.
RANKS_PER_CORE = 4


@dataclass(frozen=True)
class GroupNodes:
    """The nodes that groups run on (--nnodes), which are all alike.

    Attributes:
        devices: of one node.
        cores: of one node; the ranks of a CPU share them.
    """

    devices: Sequence[DeviceSpec]
    cores: int = field(default_factory=lambda: available_cores())

    @property
    def places(self) -> Sequence[DeviceSpec]:
        """The devices of one node, one for each rank that it can hold; ranks share the cores of a CPU."""
        return list(self.devices[:1]) * (RANKS_PER_CORE * self.cores) if self._share_cores else self.devices

    def shortage(self, spec: GroupSpec, working: Sequence[DeviceSpec]) -> str:
        """Returns why there is no device for each rank of a group; "" if there is.

        Args:
            working: the devices of this node that the session uses.
        """
        if spec.members is not None:
            return self.placement_problem(spec)
        if spec.ranks % spec.nnodes:
            return f"needs {spec.ranks} devices, which cannot be shared out evenly to {spec.nnodes} nodes"
        available = len(self._for_ranks(spec, working))
        if spec.local_ranks <= available:
            return ""
        nodes = f" on each of {spec.nnodes} nodes" if spec.nnodes > 1 else ""
        limit = f" (no more than {spec.nproc_per_node} may be used)" if spec.nproc_per_node == available else ""
        return f"needs {spec.local_ranks} devices{nodes}, {available} {'is' if available == 1 else 'are'} there{limit}"

    def placement_problem(self, spec: GroupSpec) -> str:
        """Returns why the nodes cannot hold the members of a group; "" if they can."""
        return spec.placement_problem(len(self.places), self.cores if self._share_cores else None)

    def devices_of(self, spec: GroupSpec, working: Sequence[DeviceSpec]) -> Sequence[DeviceSpec]:
        """Returns the devices of this node for its ranks of a group without a shortage, one for each rank."""
        if spec.members is not None:
            places = self.places
            return [places[member] for member in spec.local_members(len(places))]
        return self._for_ranks(spec, working)[: spec.local_ranks]

    @property
    def _share_cores(self) -> bool:
        return bool(self.devices) and kind_named(self.devices[0].kind).ranks_share

    def _for_ranks(self, spec: GroupSpec, working: Sequence[DeviceSpec]) -> Sequence[DeviceSpec]:
        """Returns the devices that the ranks of a node may own; ranks share a CPU."""
        if working and self._share_cores:
            return list(working[:1]) * (spec.nproc_per_node or _CPU_RANKS)
        return working[: spec.nproc_per_node]


class GroupPool(Relay):
    """Runs jobs in the groups that they name."""

    def __init__(
        self,
        nodes: GroupNodes,
        settings: MeasureSettings,
        excluded: ExcludedDevices,
        scheduler_of: Callable[[GroupSpec, Sequence[DeviceSpec], MeasureSettings], Scheduler] = GroupProcess,
        at_once: int = 1,
    ) -> None:
        """
        Args:
            nodes: where the groups run, with the devices of this node.
            excluded: devices that the session does not use.
            scheduler_of: makes the scheduler of a group.
        """
        super().__init__()
        self.at_once = at_once
        self._nodes = nodes
        self._settings = settings
        self._excluded = excluded
        self._scheduler_of = scheduler_of
        #: The group of the current scheduler, and the one that the last job asked for.
        self._group = self._asked = GroupSpec(0)
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

    def shortage(self, spec: GroupSpec) -> str:
        """Returns why there is no device for each rank of a group; "" if there is."""
        return self._nodes.shortage(spec, self._working)

    def _choose(self, job: Job) -> None:
        assert job.group is not None
        spec = self._asked = job.group
        if reason := self._nodes.shortage(spec, self._working):
            raise MissingPrecondition(reason)
        if given_up := self._given_up.get(spec) or (spec.nnodes > 1 and self._nodes_absent):
            raise MissingPrecondition(f"not tried again: {given_up}")
        if self._current is None or not self._group.serves(spec):
            self._close_current()
            devices = self._nodes.devices_of(spec, self._working)
            self._group = spec
            self._current = self._scheduler_of(spec, devices, self._settings_for(devices[0].kind))

    def _suits(self, job: Job) -> bool:
        return job.group is not None and self._group.serves(job.group)

    def _gives_up(self, error: DeviceGone) -> bool:
        spec = self._asked
        self._failed_starts[spec] += 1
        if isinstance(error, GroupTimeout) or self._failed_starts[spec] >= _MOST_FAILED_STARTS:
            self._given_up[spec] = str(error)
        if isinstance(error, GroupTimeout) and error.nodes:
            self._nodes_absent = str(error)
        return True

    def _refused(self, error: OpAtlasError) -> Done:
        done = super()._refused(GroupGone(str(error)) if isinstance(error, DeviceGone) else error)
        # It ran nowhere, and the description may be that of an earlier group.
        return done._replace(device=replace(done.device, facts={}))

    def _changed(self, done: Done) -> Done:
        """Adds a remark if another instrument than the default took the samples."""
        self._description = done.device
        self._failed_starts[self._asked] = 0
        measurement = done.outcome.measurement
        if not self._fallback or measurement is None:
            return done
        measurement = replace(measurement, assumptions=(*measurement.assumptions, self._fallback))
        return done._replace(outcome=replace(done.outcome, measurement=measurement))

    @property
    def _working(self) -> Sequence[DeviceSpec]:
        return [device for device in self._nodes.devices if self._excluded.reason(device) is None]

    def _settings_for(self, kind: str) -> MeasureSettings:
        device_kind, named = kind_named(kind), self._settings.instrument
        has_any = self._settings.measures and bool(device_kind.instruments)
        if not has_any or device_kind.preferred_instrument(named) != MSPROF:
            return self._settings
        chosen = device_kind.group_instrument(named)
        self._fallback = f"msprof is not on PATH: {chosen} in its place" if chosen != MSPROF else ""
        return replace(self._settings, instrument=chosen)
