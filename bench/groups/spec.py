"""Which group of processes a row needs, and how it is launched."""

from __future__ import annotations

from dataclasses import dataclass

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class GroupSpec:
    """A group of ranks, one for each device. With several nodes the same session runs on each of them.

    Attributes:
        ranks: how many, on all nodes together.
        nnodes: nodes; each has the same number of ranks.
        node_rank: which of them this is, from 0.
        master_addr: where node 0 is reached.
        master_port: the port there; None on one node: a free one.
        nproc_per_node: ranks that a node may have at most; None: one for each of its devices, and two on a CPU.
    """

    ranks: int
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = _LOOPBACK
    master_port: int | None = None
    nproc_per_node: int | None = None

    def __str__(self) -> str:
        nodes = f" on {self.nnodes} nodes" if self.nnodes > 1 else ""
        return f"group of {self.ranks} rank{'s' * (self.ranks != 1)}{nodes}"

    @property
    def local_ranks(self) -> int:
        """Ranks on this node."""
        return self.ranks // self.nnodes

    def rank_of(self, local_rank: int) -> int:
        """The number in the whole group of one of this node's ranks."""
        return self.node_rank * self.local_ranks + local_rank
