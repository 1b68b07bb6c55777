"""The messages of collectives as rows: the grid of devices, the groups, and the options that name the messages.

On a grid of 48 x 8 x 2, device 19 is die 1 of chip 1 in pod 1. The tier of a group is the outermost dimension in which
its devices differ.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from opatlas.errors import OpAtlasError
from opatlas.options import ListAction, Scope, at_least, between, declare, items_of, one_of
from opatlas.row.columns import DTYPE, MESSAGE_BYTES, NUM_DEVICES, TOPOLOGY_TIER
from opatlas.row.communication import BY_KERNEL_TYPE, BY_NAME, TIERS, Collective
from opatlas.row.signature import kernel_types_meant
from opatlas.row.slots import known_dtype
from opatlas.row.status import UpdateMode
from opatlas.row.versions import Versions, kind_of
from opatlas.run.devices.device import DeviceSpec, kind_named
from opatlas.run.group import GroupSpec, communication_variables, group_on_nodes, node_options_problem
from opatlas.run.group_pool import RANKS_PER_CORE, GroupNodes
from opatlas.run.registry import Function, replays
from opatlas.text import suggest


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


def default_grid(devices: Sequence[DeviceSpec], per_node: int, nnodes: int) -> DefaultGrid:
    """Returns the default grid of `nnodes` nodes with `per_node` devices each, linked as on one node.

    The name of an NPU gives its grid. The first dimension of other grids are the nodes, the second the devices of a
    node.

    Args:
        devices: the devices of a node.
        per_node: the number of ranks that a node can hold.
        nnodes: the number of nodes.
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
    return DefaultGrid((nnodes, per_node), (everything,), nodes)


def collective(measured: Collective) -> Callable[[Function], Function]:
    """Marks a function as the replay of a collective: `row` is a Message, `replay` a TimedCollective."""
    binding = "opatlas.run.message:bind_message"
    return replays(measured.kernel_type, npu=None, group=message_group, binding=binding)


def message_group(cells: Mapping[str, str], options: Any) -> GroupSpec:
    """Returns the group that a message needs, on the grid of `CollectivePlan.options`."""
    size = int(cells[NUM_DEVICES])
    members = Grid(tuple(options.grid_shape)).group(size, int(cells[TOPOLOGY_TIER]))
    return group_on_nodes(options, size, members=members)


MODULE = "test_collectives.py"
#: Names of dtypes in torch, and in the CSVs of HCCL.
DTYPES: Mapping[str, str] = {"bfloat16": "DT_BF16", "float16": "DT_FLOAT16", "float32": "DT_FLOAT", "int8": "DT_INT8"}
_SMALLEST, _LARGEST, _LARGEST_ON_CPU = 1 << 10, 512 << 20, 16 << 20


def _several(read: Callable[[str], Any], metavar: str) -> Mapping[str, Any]:
    """Returns the argparse keywords of an option that takes several values, separated by commas or blanks."""
    return {
        "nargs": "+",
        "action": ListAction,
        "type": items_of(read),
        "metavar": (f"{metavar}[,{metavar}...]", metavar),
    }


_collective = partial(declare, scope=Scope.COLLECTIVES)
#: The options of the collectives alone.
OPTIONS = (
    _collective(
        "--grid-shape",
        **_several(at_least(1), "N"),
        help="the grid of the devices of all nodes: number of places in each dimension, outermost first "
        "(default: 48,8,2 on an A3, 128,8 on an A2, elsewhere by nodes)",
    ),
    _collective(
        "--num-devices",
        **_several(at_least(2), "N"),
        help="sizes of the groups to measure (default: 16 on an A3, 2 on a CPU, all devices elsewhere)",
    ),
    _collective(
        "--topology-tier",
        type=between(min(TIERS), max(TIERS)),
        choices=list(TIERS),
        help="the outermost dimension of the grid in which the devices of a group differ: "
        f"{', '.join(f'{tier} {name}' for tier, name in TIERS.items())} "
        "(default: that of neighbours; with several nodes 0)",
    ),
    _collective(
        "--comm-dtype",
        **_several(one_of(DTYPES), "DTYPE"),
        default=["bfloat16"],
        help=f"dtypes of the messages: {', '.join(DTYPES)} (default: bfloat16)",
    ),
    _collective(
        "--bytes-grid",
        **_several(at_least(1), "BYTES"),
        help="sizes of the messages, rounded up to whole elements, as many for each device (default: powers of two "
        "from 1 KiB to 512 MiB, on a CPU to 16 MiB)",
    ),
)


@dataclass(frozen=True)
class CollectivePlan:
    """The messages that a session measures.

    Attributes:
        rows: cells of the messages, by kernel type, ordered by groups.
        options: the options of pytest, with the grid that is used.
        about: lines for the user on the grid, the environment and left out groups.
    """

    rows: Mapping[str, Sequence[Mapping[str, str]]]
    options: argparse.Namespace
    about: Sequence[str]


def named_collectives(ops: Sequence[str]) -> Sequence[Collective]:
    """Returns the collectives that --ops names by torch's name or by kernel type; all collectives without --ops.

    Raises:
        OpAtlasError: no collective has a name.
    """
    meant = [name for word in ops for name in kernel_types_meant(word, BY_KERNEL_TYPE)]
    if unknown := [name for name in meant if name not in BY_KERNEL_TYPE]:
        raise OpAtlasError(
            f"--ops {','.join(unknown)}: unknown collective{suggest(unknown[0], [*BY_NAME, *BY_KERNEL_TYPE])}; give "
            f"one or several of {', '.join(BY_NAME)}"
        )
    return [BY_KERNEL_TYPE[name] for name in dict.fromkeys(meant)] or list(BY_NAME.values())


def collective_plan(option: Any, nodes: GroupNodes) -> CollectivePlan:
    """Returns the messages that the options name, for groups on some nodes.

    Args:
        option: the options of pytest.
        nodes: the nodes of the groups.

    Raises:
        OpAtlasError: options contradict each other, the grid has too many dimensions or holds no group, or, with
            --strict, not all groups.
    """
    if problem := node_options_problem(option):
        raise OpAtlasError(problem)
    if option.nnodes > 1 and option.update_mode != UpdateMode.ALL.value:
        raise OpAtlasError(f"--nnodes {option.nnodes}: the databases of nodes differ: leave out --update-mode")
    collectives = named_collectives(option.ops)
    guessed = default_grid(nodes.devices, len(nodes.places), option.nnodes)
    sizes = list(dict.fromkeys(option.num_devices or guessed.num_devices))
    try:
        grid = Grid(tuple(option.grid_shape)) if option.grid_shape else guessed.grid_for(max(sizes))
    except ImpossibleGroup as error:
        raise OpAtlasError(f"--grid-shape {error}") from None
    about = [f"grid {grid}" if option.grid_shape else f"grid {Grid(guessed.shape)}: {guessed.why}"]
    variables = [f"{name}={value}" for name, value in communication_variables().items()]
    about += [f"environment: {' '.join(variables)}"] if variables else []
    options = argparse.Namespace(**{**vars(option), "grid_shape": list(grid.shape)})
    rows: dict[str, list[Mapping[str, str]]] = {each.kernel_type: [] for each in collectives}
    no_group: list[str] = []
    # By default a group of several nodes spans the nodes.
    wanted_tier = 0 if option.topology_tier is None and option.nnodes > 1 else option.topology_tier
    for size in sizes:
        try:
            members = grid.group(size, wanted_tier)
        except ImpossibleGroup as error:
            no_group.append(f"--num-devices {size}: {error}")
            continue
        tier = grid.tier_of(members)
        spec = message_group({NUM_DEVICES: str(size), TOPOLOGY_TIER: str(tier)}, options)
        reason = nodes.placement_problem(spec)
        if reason and option.strict:
            raise OpAtlasError(f"--strict: --num-devices {size} {reason}: name fewer, or leave out --strict")
        for each in collectives:
            for dtype in dict.fromkeys(option.comm_dtype):
                known = known_dtype(DTYPES[dtype])
                assert known is not None
                # Two sizes that are rounded up to the same size are one message.
                sent = [each.message_bytes(wanted, size, known.bytes) for wanted in _sizes(option, nodes.devices)]
                rows[each.kernel_type] += [
                    {MESSAGE_BYTES: str(count), NUM_DEVICES: str(size), DTYPE: DTYPES[dtype], TOPOLOGY_TIER: str(tier)}
                    for count in dict.fromkeys(sent)
                ]
    if no_group and (option.strict or len(no_group) == len(sizes)):
        raise OpAtlasError(f"{'; '.join(no_group)}: change --num-devices, --topology-tier or --grid-shape")
    return CollectivePlan(rows, options, [*about, *(f"left out: {reason}" for reason in no_group)])


def _sizes(option: Any, devices: Sequence[DeviceSpec]) -> Sequence[int]:
    """Returns the requested sizes of messages, in bytes."""
    if option.bytes_grid:
        return list(option.bytes_grid)
    largest = _LARGEST_ON_CPU if devices[0].kind == "cpu" else _LARGEST
    return [1 << power for power in range(_SMALLEST.bit_length() - 1, largest.bit_length())]


def communication_version(name: str, versions: Versions) -> str:
    """Returns the version of the library that carries messages between devices.

    Args:
        name: database name of the devices.

    Raises:
        OpAtlasError: the version is not detected.
    """
    component = kind_of(name).communication_named_by
    version: str | None = getattr(versions, component.field)
    if version is None:
        raise OpAtlasError(f"the version of {component.name} is not detected: name the folder with --database-path")
    return version
