"""Groups of ranks: which one a row needs and on which nodes, and how one rank sees its own.

opatlas/run/group_pool.py chooses the group of a row, opatlas/run/process starts its ranks and makes the Group of each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import median
from typing import TYPE_CHECKING, Any

from opatlas.options import Scope, at_least, between, declare
from opatlas.row.columns import STEP
from opatlas.row.communication import row_kind
from opatlas.row.errors import ReplayError

if TYPE_CHECKING:
    import torch

    from opatlas.run.instruments.instrument import Instrument, Rule, Samples


LOOPBACK = "127.0.0.1"
#: Ranks import torch (and torch_npu) from a disk that may be cold. HCCL itself gives up after 120 s, and names ranks.
JOIN_TIMEOUT_S = 180.0
#: A user starts the same command on one node after the other.
NODES_JOIN_TIMEOUT_S = 300.0
#: Maximum number of ranks that a message names.
_MOST_NAMED = 3
#: Prefixes of the environment variables of the libraries that communicate.
_VARIABLE_PREFIXES = ("NCCL_", "HCCL_", "GLOO_")
#: NVIDIA's containers set it to the installed version; NCCL does not read it.
_OTHER_VARIABLES = ("NCCL_VERSION",)


@dataclass(frozen=True)
class GroupSpec:
    """A group of ranks, one rank for each device. With several nodes the same session runs on each node.

    Attributes:
        ranks: total number of ranks on all nodes.
        nnodes: number of nodes; each has the same number of ranks.
        node_rank: number of this node, from 0.
        master_addr: address of node 0.
        master_port: port of node 0; None on a single node: a free port.
        nproc_per_node: maximum number of ranks on a node; None: one for each device of the node, and two on a CPU.
        members: the devices of the ranks, in order of the ranks, counted from 0 through all nodes; None: the first
            devices of each node.
        join_timeout_s: seconds that the group may take to start; None: JOIN_TIMEOUT_S or NODES_JOIN_TIMEOUT_S.
        hccl_buffer_mib: HCCL_BUFFSIZE of the ranks, unless the user has set that variable; None: HCCL's default.
        is_device: whether it is no group, but the process of one device, which meets no other.
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
    is_device: bool = False

    def __str__(self) -> str:
        if self.is_device:
            return "device process"
        nodes = f" on {self.nnodes} nodes" if self.nnodes > 1 else ""
        chosen = self.members is not None and self.members != tuple(range(self.ranks))
        devices = f" (devices {', '.join(map(str, self.members or ()))})" if chosen else ""
        return f"group of {self.ranks} rank{'s' * (self.ranks != 1)}{nodes}{devices}"

    @property
    def sort_key(self) -> tuple[object, ...]:
        """Returns a key that sorts rows so that groups change least often: larger buffers serve smaller rows too."""
        return self.ranks, self.members or (), -(self.hccl_buffer_mib or 0)

    def serves(self, needed: GroupSpec) -> bool:
        """Returns whether a row that needs the group `needed` can run in this group, which may have a larger buffer."""
        own, other = self.hccl_buffer_mib, needed.hccl_buffer_mib
        return replace(self, hccl_buffer_mib=other) == needed and (own or 0) >= (other or 0)

    @property
    def local_ranks(self) -> int:
        """Returns the number of ranks on this node."""
        return self.ranks // self.nnodes

    @property
    def join_limit_s(self) -> float:
        """Returns the seconds that the group may take to start."""
        return self.join_timeout_s or (JOIN_TIMEOUT_S if self.nnodes == 1 else NODES_JOIN_TIMEOUT_S)

    @property
    def other_nodes(self) -> str:
        """Returns the other nodes and the address where they meet: "node 1 at 10.0.0.1:29500"."""
        others = [str(node) for node in range(self.nnodes) if node != self.node_rank]
        return f"node{'s' * (len(others) > 1)} {', '.join(others)} at {self.master_addr}:{self.master_port}"

    def rank_of(self, local_rank: int) -> int:
        """Returns the number of a rank of this node within the whole group."""
        return self.node_rank * self.local_ranks + local_rank

    def rank_name(self, local_rank: int) -> str:
        """Returns the name of a rank of this node: "rank 1 of 2"."""
        return "the device process" if self.is_device else f"rank {self.rank_of(local_rank)} of {self.ranks}"

    def rank_names(self, local_ranks: Sequence[int]) -> str:
        """Returns the names of ranks of this node: "rank 0 of 2 and rank 1 of 2"; for many ranks their number."""
        if len(local_ranks) > _MOST_NAMED:
            return f"{len(local_ranks)} of {self.ranks} ranks, {self.rank_name(local_ranks[0])} among them,"
        return " and ".join(map(self.rank_name, local_ranks))

    def local_members(self, per_node: int) -> tuple[int, ...]:
        """Returns the devices of this node that its ranks own, if each node has `per_node` devices."""
        return tuple(member % per_node for member in self.members or () if member // per_node == self.node_rank)

    def placement_problem(self, per_node: int, shared_cores: int | None = None) -> str:
        """Returns why the members cannot be ranks of nodes with `per_node` devices each; "" if they can.

        Args:
            per_node: number of devices of a node, or of ranks that the cores of a node may hold.
            shared_cores: cores of a node whose ranks share them; None if each rank has a device of its own.
        """
        members = self.members or ()
        needed, there = max(members) + 1, per_node * self.nnodes
        if needed > there and shared_cores is not None:
            cores, each = shared_cores * self.nnodes, per_node // shared_cores
            return f"needs {needed} ranks: {cores} cores hold {there} ({each} each)"
        if needed > there:
            return f"needs {needed} devices, {there} {'is' if there == 1 else 'are'} there"
        shares = [sum(member // per_node == node for member in members) for node in range(self.nnodes)]
        if len(set(shares)) > 1:
            return (
                f"takes {' + '.join(map(str, shares))} devices of the {self.nnodes} nodes, but a group of several "
                "nodes takes equally many of each: measure it on one node, or name another --num-devices"
            )
        return ""


def communication_variables() -> dict[str, str]:
    """Returns the variables of this process that the libraries that communicate read, sorted by name."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(_VARIABLE_PREFIXES) and name not in _OTHER_VARIABLES
    }


_running = partial(declare, scope=Scope.RUNNING)
#: Options for the nodes of groups, for collectives and for kernels of expert parallelism.
NODE_OPTIONS = (
    _running(
        "--nnodes",
        type=at_least(1),
        default=1,
        metavar="N",
        help="number of nodes of each group; run the same command on each node (default: %(default)s)",
    ),
    _running(
        "--node-rank",
        type=at_least(0),
        default=0,
        metavar="I",
        help="number of this node, from 0 (default: %(default)s)",
    ),
    _running("--master-addr", default=LOOPBACK, metavar="HOST", help="address of node 0 (default: %(default)s)"),
    _running(
        "--master-port",
        type=between(1, 65535),
        metavar="PORT",
        help="port of node 0, needed with several nodes (default: a free port)",
    ),
)


def group_on_nodes(options: Any, ranks: int, **more: Any) -> GroupSpec:
    """Returns the group of `ranks` ranks on the nodes that the options name; `more` are fields of GroupSpec.

    A group may take as long to start as its rows may run, and at least the default of GroupSpec.
    """
    limit_s, least_s = options.case_timeout, GroupSpec(ranks, nnodes=options.nnodes).join_limit_s
    return GroupSpec(
        ranks,
        nnodes=options.nnodes,
        node_rank=options.node_rank,
        master_addr=options.master_addr,
        master_port=options.master_port,
        join_timeout_s=limit_s if limit_s is not None and limit_s > least_s else None,
        **more,
    )


def group_of_step(cells: Mapping[str, str], options: Any) -> GroupSpec:
    """Returns the group of a step of several devices."""
    # The models take 50 ms to import, which other sessions do without.
    from opatlas.theory.model_step import Step

    return group_on_nodes(options, Step.read(cells[STEP]).group_size)


def node_options_problem(options: Any) -> str:
    """Returns why the node options contradict each other, and the remedy; "" if the options are consistent."""
    if options.node_rank >= options.nnodes:
        return f"--node-rank {options.node_rank}: there are {options.nnodes} nodes, numbered from 0"
    if options.nnodes > 1 and options.master_port is None:
        return f"--nnodes {options.nnodes}: name a port of node 0 with --master-port"
    return ""


#: Counter of a measurement: difference between the largest and the smallest median of the ranks.
RANK_SPREAD = "Rank Spread(us)"
#: Elements (float32, 16 MiB) of the all_reduce of a device barrier. Over NVLink it takes some 80 us, in which a host
#: launches two or three collectives. With 8 MiB on two H200, all_to_all of 1 KiB began 17 us apart.
BARRIER_ELEMENTS = 4 << 20
#: After several all_reduce even the slowest host is ahead of its device.
_BARRIER_CALLS = 4


@dataclass
class Group:
    """The group that a replay runs in, as one rank sees it.

    Attributes:
        rank: the number of this rank, from 0.
        size: number of ranks.
    """

    rank: int
    size: int
    _find_name: Callable[[], str] = str
    _report: Callable[[int, str], None] = lambda step, text: None
    _step: int = 0
    #: Tensor on the device for device barriers; None where the device is the host.
    _barrier_tensor: torch.Tensor | None = None

    @cached_property
    def name(self) -> str:
        """Returns the name by which a kernel that communicates finds the group; "" for a rank without other ranks.

        All ranks must ask for the name together: the first time may create a communicator.
        """
        return self._find_name()

    def first_rank_decides(self, value: bool) -> bool:
        """Returns the value of rank 0 on every rank, so that all ranks make equally many calls."""
        if self.size == 1:
            return value
        import torch
        from torch import distributed

        decision = torch.tensor([value])
        distributed.broadcast(decision, src=0)
        return bool(decision)

    def barrier(self) -> None:
        """Waits on the host until every rank has called this method."""
        if self.size > 1:
            import torch
            from torch import distributed

            # A tensor on the host: nothing is launched on a device.
            distributed.all_reduce(torch.zeros(1))

    def device_barrier(self) -> None:
        """Makes the ranks begin their next call at the same time.

        On a CPU this is a barrier of the hosts: the ranks leave it some microseconds apart. On other devices no host
        waits: each launches a few all_reduce, long enough for every host to launch the next call. The devices end the
        last all_reduce together, and continue without their hosts.
        """
        if self._barrier_tensor is None:
            self.barrier()
        else:
            from torch import distributed

            for _ in range(_BARRIER_CALLS):
                distributed.all_reduce(self._barrier_tensor)

    def gather(self, values: Sequence[float]) -> list[list[float]]:
        """Returns the values of every rank, in order of the ranks; all ranks must give equally many values."""
        if self.size == 1:
            return [list(values)]
        import torch
        from torch import distributed

        own = torch.tensor(values, dtype=torch.float64)
        gathered = [torch.empty_like(own) for _ in range(self.size)]
        distributed.all_gather(gathered, own)
        return [part.tolist() for part in gathered]

    def gather_samples(self, own_us: Sequence[float]) -> list[list[float]]:
        """Returns every rank's samples of one call, in microseconds.

        Args:
            own_us: samples of this rank; empty if the rank has none, so that the other ranks notice.

        Raises:
            ReplayError: on every rank, if a rank has no samples or the ranks have different numbers of samples.
        """
        counts = [int(count) for (count,) in self.gather([float(len(own_us))])]
        if len(set(counts)) > 1 or not own_us:
            raise ReplayError(f"the ranks have different numbers of samples of the same call: {counts}")
        return self.gather(own_us)

    def report_step(self, text: str) -> None:
        """Reports the current step of this rank, so that pytest can name a rank that hangs."""
        self._step += 1
        self._report(self._step, text)


#: The group of a process that has no other ranks.
ALONE = Group(0, 1)


class SynchronizedInstrument:
    """An Instrument whose samples begin together on all ranks; all ranks take equally many samples."""

    def __init__(self, instrument: Instrument, group: Group) -> None:
        self.name = instrument.name
        self.wrapped = instrument
        self._group = group

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        """Takes samples as `Instrument.sample` does; the rule of rank 0 decides for all ranks."""

        def synchronize() -> None:
            if before_each is not None:
                before_each()
            self._group.report_step("in a timed call")
            self._group.device_barrier()

        self._group.report_step("between calls")
        # Without `before_each` each rank would choose its own number of calls for a sample.
        return self.wrapped.sample(call, synchronize, SharedRule(rule, self._group))


class SharedRule:
    """The stop rule of rank 0, for all ranks."""

    def __init__(self, rule: Rule, group: Group) -> None:
        self._rule = rule
        self._group = group

    def enough(self, samples_us: Sequence[float]) -> bool:
        return self._group.first_rank_decides(self._rule.enough(samples_us))

    def enough_count(self, count: int) -> bool:
        return self._group.first_rank_decides(self._rule.enough_count(count))

    def batch(self, count: int) -> int:
        """Returns 1: the number of samples that an instrument can queue differs between ranks."""
        return 1

    def again(self) -> None:
        """Does nothing: samples of a single rank are not taken again."""


def ranks_of_node() -> int:
    """Returns the number of ranks on this node, by torchrun's variable; 1 for a process without a group."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def spread_us(rank_samples_us: Sequence[Sequence[float]]) -> float:
    """Returns the largest minus the smallest median of the ranks, in microseconds, with the decimals of a CSV."""
    medians = [median(samples) for samples in rank_samples_us]
    return round(max(medians) - min(medians), 4)


def slowest_us(kernel_type: str, rank_samples_us: Sequence[Sequence[float]]) -> tuple[int, tuple[float, ...]]:
    """Returns the rank with the largest median, and the samples of the group, in microseconds.

    A collective begins on all ranks at once: the samples of the slowest rank are the samples of the group. In other
    kernels different ranks may be slow in different samples: each sample of the group is the longest of the ranks.

    Args:
        kernel_type: kernel type of the row.
        rank_samples_us: the samples of each rank, equally many for all ranks.
    """
    slowest = max(range(len(rank_samples_us)), key=lambda rank: median(rank_samples_us[rank]))
    if row_kind(kernel_type).is_message:
        return slowest, tuple(rank_samples_us[slowest])
    return slowest, tuple(map(max, zip(*rank_samples_us, strict=True)))
