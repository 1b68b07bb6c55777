"""The rows of collectives and their grid: which devices a group takes, and the tier that links them.

On a grid of 48 x 8 x 2, device 19 is die 1 of chip 1 in pod 1. The tier of a group is the outermost dimension in which
its devices differ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from opatlas.row.columns import NUM_DEVICES, TOPOLOGY_TIER
from opatlas.row.communication import TIERS, Collective
from opatlas.run.devices.device import DeviceSpec, Islands, kind_named
from opatlas.run.group import GroupSpec, group_on_nodes
from opatlas.run.groups.pool import RANKS_PER_CORE
from opatlas.run.job import Job
from opatlas.run.registry import Function, ReplaySpec, replays

if TYPE_CHECKING:
    from opatlas.run.collectives.message import Message, TimedCollective
    from opatlas.run.devices.device import Device
    from opatlas.run.group import Group
    from opatlas.run.instruments.instrument import Instrument, MeasureSettings


class ImpossibleGroup(ValueError):
    """A grid cannot hold a group; the message says why."""


@dataclass(frozen=True)
class Grid:
    """A grid of devices. The number of a device counts its coordinates, the last dimension fastest.

    Raises ImpossibleGroup for a shape with too many dimensions.

    Attributes:
        shape: number of places in each dimension, outermost first.
    """

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.shape) <= len(TIERS) or min(self.shape) < 1:
            raise ImpossibleGroup(f"{self}: a grid has 1 to {len(TIERS)} dimensions of at least 1")

    def __str__(self) -> str:
        return " x ".join(map(str, self.shape))

    @property
    def size(self) -> int:
        """The number of devices."""
        return prod(self.shape)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Returns the coordinates of a device."""
        found = []
        for extent in reversed(self.shape):
            rank, at = divmod(rank, extent)
            found.append(at)
        return tuple(reversed(found))

    def tier_of(self, ranks: Sequence[int]) -> int:
        """Returns the outermost dimension in which devices differ. Raises ImpossibleGroup for a single device."""
        if len(set(ranks)) < 2:
            raise ImpossibleGroup("one device alone communicates with no other")
        places = zip(*map(self.coordinates, ranks), strict=True)
        return next(dimension for dimension, values in enumerate(places) if len(set(values)) > 1)

    def group(self, num_devices: int, tier: int | None = None) -> tuple[int, ...]:
        """Returns the devices of a group.

        These are the devices from 0 on, if their tier is the requested one. If not, devices are taken from as many
        places of the tier's dimension as possible, evenly: two devices of tier 1 on 48 x 8 x 2 are 0 and 2, and all
        that they send crosses that tier.

        Args:
            num_devices: the size of the group, 2 or more.
            tier: the dimension in which the devices differ; they share their places in the dimensions before it. None:
                the tier of the devices from 0 on.

        Raises:
            ImpossibleGroup: the grid cannot hold the group.
        """
        if num_devices > self.size:
            raise ImpossibleGroup(f"the grid {self} has {self.size} devices, and {num_devices} are needed")
        neighbours = tuple(range(num_devices))
        own_tier = self.tier_of(neighbours)
        if tier is None or tier == own_tier:
            return neighbours
        if not 0 <= tier < len(self.shape):
            raise ImpossibleGroup(f"the grid {self} has no tier {tier}: it has {len(self.shape)} dimensions, from 0 on")
        devices_of_a_place = prod(self.shape[tier + 1 :])
        places = min(num_devices, self.shape[tier])
        if num_devices > devices_of_a_place * self.shape[tier]:
            raise ImpossibleGroup(
                f"{num_devices} devices of the grid {self} cannot share tier {tier}, which links "
                f"{devices_of_a_place * self.shape[tier]} at most: they are of tier {own_tier}"
            )
        if places < 2:
            raise ImpossibleGroup(f"tier {tier} of the grid {self} links nothing: its dimension is {self.shape[tier]}")
        share, more = divmod(num_devices, places)
        return tuple(place * devices_of_a_place + at for place in range(places) for at in range(share + (place < more)))


@dataclass(frozen=True)
class DefaultGrid:
    """The grid that is used without --grid-shape.

    Attributes:
        shape: of the grid.
        num_devices: sizes of the groups that are measured without --num-devices.
        why: the reason for the shape, for the user.
    """

    shape: tuple[int, ...]
    num_devices: tuple[int, ...]
    why: str

    def grid_for(self, num_devices: int) -> Grid:
        """Returns the grid; its second dimension is extended if it has fewer than `num_devices` devices.

        A group that is too large then reports the devices that it lacks, and not a wrong default grid.
        """
        grid = Grid(self.shape)
        if grid.size >= num_devices:
            return grid
        nodes, extent, *inner = self.shape
        others = grid.size // extent
        return Grid((nodes, -(-num_devices // others), *inner))


def default_grid(
    devices: Sequence[DeviceSpec], per_node: int, nnodes: int, islands: Islands | None = None
) -> DefaultGrid:
    """Returns the default grid of `nnodes` nodes with `per_node` devices each, linked as on one node.

    The name of an NPU gives its grid. The first dimension of other grids are the nodes, the second the devices of a
    node, or its NVLink islands, and then the third the devices of an island.

    Args:
        devices: the devices of a node.
        per_node: the number of ranks that a node can hold.
        nnodes: the number of nodes.
        islands: the NVLink islands of a node's GPUs; None: those of this machine are used.
    """
    device, everything = devices[0], per_node * nnodes
    kind, nodes = kind_named(device.kind), "one node" if nnodes == 1 else f"{nnodes} nodes"
    for product, (shape, sizes) in kind.grids.items():
        if (device.name or kind.default_device).startswith(product):
            return DefaultGrid(shape, sizes or (everything,), f"that of an {product}")
    if kind.ranks_share:
        cores = per_node // RANKS_PER_CORE
        why = f"{nodes}, at most {RANKS_PER_CORE} ranks on each of {cores} core{'s' * (cores > 1)}"
        return DefaultGrid((nnodes, per_node), (2 * nnodes,), why)
    found = islands or kind.islands(devices)
    size = found.size
    if size is not None and 1 < size < per_node:
        return DefaultGrid((nnodes, per_node // size, size), (everything,), f"{found.why}, {size} GPUs each")
    return DefaultGrid((nnodes, per_node), (everything,), found.why or f"a guess: {nodes}")


def collective(measured: Collective) -> Callable[[Function], Function]:
    """Marks a function as the replay of a collective: `row` is a Message, `replay` a TimedCollective."""
    return replays(measured.kernel_type, npu=None, group=message_group, binding=_bind_message)


def message_group(cells: Mapping[str, str], options: Any) -> GroupSpec:
    """Returns the group that a message needs, on the grid of `CollectivePlan.options`."""
    size = int(cells[NUM_DEVICES])
    members = Grid(tuple(options.grid_shape)).group(size, int(cells[TOPOLOGY_TIER]))
    return group_on_nodes(options, size, members=members)


def _bind_message(
    job: Job, spec: ReplaySpec, device: Device, instrument: Instrument, settings: MeasureSettings, group: Group
) -> tuple[Message, TimedCollective]:
    """Makes `row` and `replay` of a message. Raises InvalidRow."""
    from opatlas.run.collectives.message import Message, TimedCollective

    row = Message(job.kernel_type, job.cells, device.torch_device, group.rank, group.size)
    return row, TimedCollective(row, device, instrument, settings, group)
