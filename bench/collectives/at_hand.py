"""How the devices at hand are linked, as far as can be told without torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.collectives.topology import Grid
from bench.devices.kinds import ranks_share
from bench.devices.nvlink import islands
from bench.groups.pool import RANKS_PER_CORE
from bench.job import DeviceSpec
from database.layout import DEFAULT_NPU_DEVICE

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
        found = islands(devices)
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
