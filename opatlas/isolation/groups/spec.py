"""Which group of processes a row needs, and how it is launched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

LOOPBACK = "127.0.0.1"
#: Ranks import torch (and torch_npu) from a disk that may be cold; HCCL itself gives up after 120 s, and says of whom.
JOIN_TIMEOUT_S = 180.0
#: People start the same command on one node after the other.
NODES_JOIN_TIMEOUT_S = 300.0
#: More ranks than these are counted.
_NAMED = 3


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
        members: the devices that the ranks own, in their order, counted from 0 through all nodes; None: each
            node's first ones.
        join_timeout_s: how long it may take to come together; None: the usual time.
        hccl_buffer_mib: HCCL_BUFFSIZE of its ranks, unless the caller has set that; None: HCCL's own.
    """

    ranks: int
    nnodes: int = 1
    node_rank: int = 0
    master_addr: str = LOOPBACK
    master_port: int | None = None
    nproc_per_node: int | None = None
    members: tuple[int, ...] | None = None
    join_timeout_s: float | None = None
    hccl_buffer_mib: int | None = None

    def __str__(self) -> str:
        nodes = f" on {self.nnodes} nodes" if self.nnodes > 1 else ""
        chosen = self.members is not None and self.members != tuple(range(self.ranks))
        devices = f" (devices {', '.join(map(str, self.members or ()))})" if chosen else ""
        return f"group of {self.ranks} rank{'s' * (self.ranks != 1)}{nodes}{devices}"

    def serves(self, wanted: GroupSpec) -> bool:
        """Whether rows that need another group can run in this one: it is the same, or has a larger buffer."""
        own, other = self.hccl_buffer_mib, wanted.hccl_buffer_mib
        return replace(self, hccl_buffer_mib=other) == wanted and (own or 0) >= (other or 0)

    @property
    def local_ranks(self) -> int:
        """Ranks on this node."""
        return self.ranks // self.nnodes

    @property
    def join_limit_s(self) -> float:
        """How long it may take to come together."""
        return self.join_timeout_s or (JOIN_TIMEOUT_S if self.nnodes == 1 else NODES_JOIN_TIMEOUT_S)

    @property
    def other_nodes(self) -> str:
        """Whom this node meets, and where: "node 1 at 10.0.0.1:29500"."""
        others = [str(node) for node in range(self.nnodes) if node != self.node_rank]
        return f"node{'s' * (len(others) > 1)} {', '.join(others)} at {self.master_addr}:{self.master_port}"

    def rank_of(self, local_rank: int) -> int:
        """The number in the whole group of one of this node's ranks."""
        return self.node_rank * self.local_ranks + local_rank

    def name_of(self, local_rank: int) -> str:
        """One of this node's ranks: "rank 1 of 2"."""
        return f"rank {self.rank_of(local_rank)} of {self.ranks}"

    def names_of(self, local_ranks: Sequence[int]) -> str:
        """Some of this node's ranks: "rank 0 of 2 and rank 1 of 2"; many are counted."""
        if len(local_ranks) > _NAMED:
            return f"{len(local_ranks)} of {self.ranks} ranks, {self.name_of(local_ranks[0])} among them,"
        return " and ".join(map(self.name_of, local_ranks))

    def local_members(self, per_node: int) -> tuple[int, ...]:
        """Which of this node's devices its ranks own, where each node has so many."""
        return tuple(member % per_node for member in self.members or () if member // per_node == self.node_rank)

    def misplaced(self, per_node: int, shared_cores: int | None = None) -> str:
        """Why its members cannot be the ranks of nodes that have so many devices each; "" where they can.

        Args:
            per_node: devices, or ranks that the cores of a node may have.
            shared_cores: of a node whose ranks share its cores; None where each rank has a device of its own.
        """
        members = self.members or ()
        there = per_node * self.nnodes
        if max(members) >= there and shared_cores is not None:
            nodes = f" of {self.nnodes} nodes" if self.nnodes > 1 else ""
            cores = f"{shared_cores * self.nnodes} core{'s' * (there > per_node or shared_cores > 1)}{nodes}"
            hold = "holds" if cores == "1 core" else "hold"
            return f"needs {max(members) + 1} ranks; {cores} {hold} {there} ({per_node // shared_cores} a core)"
        if max(members) >= there:
            which = "" if max(members) < self.ranks else f" (its ranks own {', '.join(map(str, members))}, from 0)"
            return f"needs {max(members) + 1} devices{which}, {there} {'is' if there == 1 else 'are'} there"
        shares = [sum(member // per_node == node for member in members) for node in range(self.nnodes)]
        if len(set(shares)) > 1:
            return (
                f"takes {' + '.join(map(str, shares))} devices of the {self.nnodes} nodes, and a group of several "
                "nodes takes as many of each: measure it without --nnodes, or name another --num-devices"
            )
        return ""
