"""Devices as a grid: which of them a group takes, and what links its members at most.

Ranks are coordinates in a grid whose last dimension counts fastest: on a grid of 48, 8 and 2, rank 19 is die 1 of
chip 1 in pod 1. The tier of some ranks is the outermost dimension in which they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from opatlas.devices.device import DeviceSpec
from opatlas.devices.discovery import ranks_share
from opatlas.devices.nvidia import find_nvlink_islands
from opatlas.isolation.groups.pool import RANKS_PER_CORE
from opatlas.model.communication import TIERS
from opatlas.model.location import DEFAULT_NPU_DEVICE


class NoGroup(ValueError):
    """A grid that does not hold the group; the message says why."""


@dataclass(frozen=True)
class Grid:
    """Attributes: shape: how many there are in each dimension, outermost first."""

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.shape) <= len(TIERS) or min(self.shape) < 1:
            raise ValueError(f"{self}: a grid has 1 to {len(TIERS)} dimensions of at least 1")

    def __str__(self) -> str:
        return " x ".join(map(str, self.shape))

    @property
    def size(self) -> int:
        """How many ranks it holds."""
        return prod(self.shape)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Where a rank is."""
        found = []
        for extent in reversed(self.shape):
            rank, at = divmod(rank, extent)
            found.append(at)
        return tuple(reversed(found))

    def tier_of(self, ranks: Sequence[int]) -> int:
        """The outermost dimension in which some ranks differ. Raises NoGroup for fewer than two of them."""
        if len(set(ranks)) < 2:
            raise NoGroup("one device alone communicates with nobody")
        places = zip(*map(self.coordinates, ranks), strict=True)
        return next(dimension for dimension, values in enumerate(places) if len(set(values)) > 1)

    def group(self, num_devices: int, tier: int | None = None) -> tuple[int, ...]:
        """The ranks of a group, from 0 on.

        Neighbours, where these span the tier. Where too few of them do, members are taken from as many
        places of the tier's dimension as there are, as evenly as possible: two of tier 1 on 48 x 8 x 2 are
        ranks 0 and 2, and all that they send crosses that tier.

        Args:
            tier: whose dimension the members span, sharing their places in those before it; None: that of
                neighbours.

        Raises:
            NoGroup: the grid does not hold it.
        """
        if num_devices > self.size:
            raise NoGroup(f"the grid {self} has {self.size} devices, and {num_devices} are needed")
        neighbours = tuple(range(num_devices))
        own_tier = self.tier_of(neighbours)
        if tier is None or tier == own_tier:
            return neighbours
        if not 0 <= tier < len(self.shape):
            raise NoGroup(f"the grid {self} has no tier {tier}: it has {len(self.shape)} dimensions, from 0 on")
        # Devices of one place of the tier's dimension.
        inner = prod(self.shape[tier + 1 :])
        places = min(num_devices, self.shape[tier])
        if num_devices > inner * self.shape[tier]:
            raise NoGroup(
                f"{num_devices} devices of the grid {self} cannot share tier {tier}, which links "
                f"{inner * self.shape[tier]} at most: they are of tier {own_tier}"
            )
        if places < 2:
            raise NoGroup(f"tier {tier} of the grid {self} links nothing: its dimension is {self.shape[tier]}")
        share, more = divmod(num_devices, places)
        return tuple(place * inner + at for place in range(places) for at in range(share + (place < more)))


_A3, _A2 = "ATLAS_800_A3", "ATLAS_800_A2"


@dataclass(frozen=True)
class Guess:
    """
    Attributes:
        shape: of the grid.
        num_devices: sizes of the groups that are measured where nothing else is said.
        why: what it stands on.
    """

    shape: tuple[int, ...]
    num_devices: tuple[int, ...]
    why: str

    def holding(self, num_devices: int) -> Grid:
        """The grid, with a longer outermost but one dimension where it has fewer devices than that.

        So that a group of more devices than there are is told what it lacks, and not that the guess is wrong.
        """
        grid = Grid(self.shape)
        if grid.size >= num_devices:
            return grid
        nodes, extent, *inner = self.shape
        others = grid.size // extent
        return Grid((nodes, -(-num_devices // others), *inner))


def guess(devices: Sequence[DeviceSpec], per_node: int, nnodes: int) -> Guess:
    """The grid of nodes that have so many devices each, all linked as those of this one.

    NPUs are known by their name. The first dimension of other grids is that of the nodes; the second one that of
    a node's devices, or of the islands among them that NVLink joins, and then the third that of an island's.
    """
    device, everything = devices[0], per_node * nnodes
    if device.kind == "npu":
        name = device.name or DEFAULT_NPU_DEVICE
        if name.startswith(_A3):
            return Guess((48, 8, 2), (16,), f"that of an {_A3}")
        if name.startswith(_A2):
            return Guess((128, 8), (everything,), f"that of an {_A2}")
    if device.kind == "cuda":
        found = find_nvlink_islands(devices)
        size = found.size
        if size is not None and 1 < size < per_node:
            return Guess((nnodes, per_node // size, size), (everything,), f"{found.why}, {size} GPUs each")
        return Guess((nnodes, per_node), (everything,), found.why)
    nodes = "one node" if nnodes == 1 else f"{nnodes} nodes"
    if ranks_share(device.kind):
        cores = per_node // RANKS_PER_CORE
        why = f"{nodes}, at most {RANKS_PER_CORE} ranks on each of {cores} core{'s' * (cores > 1)}"
        return Guess((nnodes, per_node), (2 * nnodes,), why)
    return Guess((nnodes, per_node), (everything,), f"a guess: {nodes}")
