"""The nodes that groups run on: the devices of each, and on how many of them a group runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from opatlas.run.devices.device import DeviceSpec, kind_named
from opatlas.run.devices.system import available_cores
from opatlas.run.group_spec import GroupSpec

#: Default number of ranks that share a CPU: enough to try a kernel that communicates.
_CPU_RANKS = 2
#: With more ranks on a core, durations would show how the system shares its cores.
RANKS_PER_CORE = 4


@dataclass(frozen=True)
class GroupNodes:
    """The nodes that groups run on, which are all alike.

    Attributes:
        devices: of one node.
        cores: of one node; the ranks of a CPU share them.
        hosts: number of hosts of a cluster, of which a group takes as few as hold it; None: each group says on how many
            nodes it runs (--nnodes).
    """

    devices: Sequence[DeviceSpec]
    cores: int = field(default_factory=lambda: available_cores())
    hosts: int | None = None

    @property
    def places(self) -> Sequence[DeviceSpec]:
        """The devices of one node, one for each rank that it can hold; ranks share the cores of a CPU."""
        return list(self.devices[:1]) * (RANKS_PER_CORE * self.cores) if self._share_cores else self.devices

    def placed(self, spec: GroupSpec) -> GroupSpec:
        """Returns the group with the number of hosts that it takes, or the most that there are."""
        if self.hosts is None:
            return spec
        if spec.members is not None:
            return replace(spec, nnodes=min(max(spec.members) // len(self.places) + 1, self.hosts))
        counts = [count for count in range(1, self.hosts + 1) if spec.ranks % count == 0]
        most = len(self._for_ranks(spec, self.devices))
        return replace(spec, nnodes=next((count for count in counts if most * count >= spec.ranks), counts[-1]))

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
