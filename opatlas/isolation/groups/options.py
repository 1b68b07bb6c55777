"""The options that say on which nodes groups run; each who needs groups has them under a prefix of his own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from opatlas.isolation.groups.spec import (
    JOIN_TIMEOUT_S,
    LOOPBACK,
    NODES_JOIN_TIMEOUT_S,
    GroupSpec,
)
from opatlas.model.errors import InvalidRow, MissingPrecondition
from opatlas.model.schema import EP_SIZE
from opatlas.options import Option, Scope, add_all, at_least, between, declare, positive
from opatlas.text import whole

if TYPE_CHECKING:
    import pytest


class NodeOptions:
    """`{prefix}nnodes` and the like, of one prefix."""

    def __init__(self, prefix: str, alias: str = "") -> None:
        """
        Args:
            prefix: of the option strings, "--" or longer.
            alias: another prefix, under which the same options are accepted; "" for none.
        """
        self._prefix = prefix
        self._alias = alias

    def declare(self, name: str, scope: Scope, **how: Any) -> Option:
        """An option under the prefix, and under the other one; arguments as in `declared_options.declare`."""
        aliases = (f"{self._alias}{name}",) if self._alias else ()
        return declare(f"{self._prefix}{name}", scope, aliases=aliases, **how)

    def declared(self, scope: Scope) -> Sequence[Option]:
        """The options that say on which nodes groups run."""
        return (
            self.declare(
                "nnodes",
                scope,
                type=at_least(1),
                default=1,
                metavar="N",
                help="nodes of each group; the same command runs on each of them (default: %(default)s)",
            ),
            self.declare(
                "node-rank",
                scope,
                type=at_least(0),
                default=0,
                metavar="I",
                help="which of the nodes this is, from 0 (default: %(default)s)",
            ),
            self.declare(
                "master-addr",
                scope,
                default=LOOPBACK,
                metavar="HOST",
                help="where node 0 is reached (default: %(default)s)",
            ),
            self.declare(
                "master-port",
                scope,
                type=between(1, 65535),
                metavar="PORT",
                help="the port there, needed with several nodes (default: a free one)",
            ),
            self.declare(
                "join-timeout",
                scope,
                type=positive,
                metavar="SECONDS",
                help="how long a group may take to come together: its ranks start, and its nodes meet "
                f"(default: {JOIN_TIMEOUT_S:g}, and {NODES_JOIN_TIMEOUT_S:g} with several nodes)",
            ),
        )

    def spec(self, options: Any, ranks: int, **more: Any) -> GroupSpec:
        """The group of so many ranks on these nodes; `more` as GroupSpec has it."""
        names = ("nnodes", "node_rank", "master_addr", "master_port", "join_timeout")
        values = {name: self._value(options, name) for name in names}
        return GroupSpec(ranks, join_timeout_s=values.pop("join_timeout"), **values, **more)

    def contradiction(self, options: Any) -> str:
        """What is wrong with the options as they go together; "" where nothing is."""
        nodes, rank = self._value(options, "nnodes"), self._value(options, "node_rank")
        if rank >= nodes:
            return f"{self._prefix}node-rank {rank}: there are {nodes} nodes, from 0 on"
        if nodes > 1 and self._value(options, "master_port") is None:
            return f"{self._prefix}nnodes {nodes}: name a port of node 0 with {self._prefix}master-port"
        return ""

    def _value(self, options: Any, name: str) -> Any:
        return getattr(options, self._prefix.removeprefix("--").replace("-", "_") + name)


#: Of rows that do not tell their EP Size.
DEFAULT_EP_SIZE = 16
_SCOPE = Scope.RUNNING | Scope.KERNELS
#: The options were DispatchFFNCombine's alone once.
_NODES = NodeOptions("--ep-", alias="--dispatch-ffn-combine-")

OPTIONS = (
    declare(
        "--ep-size",
        Scope.KERNELS,
        aliases=("--dispatch-ffn-combine-ep-size",),
        type=at_least(1),
        metavar="N",
        help=f"devices that share the experts, for rows that do not tell it; with --prof-path, those of the "
        f"profiled run (default: {DEFAULT_EP_SIZE}, and unknown with --prof-path)",
    ),
    _NODES.declare(
        "nproc-per-node",
        _SCOPE,
        type=at_least(1),
        metavar="N",
        help="the most ranks on a node (default: one for each of its devices, and 2 on a CPU)",
    ),
    *_NODES.declared(_SCOPE),
)


def add_options(parser: pytest.Parser) -> None:
    """Adds the options of expert-parallel groups to those of `pytest bench/`."""
    group = parser.getgroup("expert-parallel", "Expert parallelism: the groups of devices that some kernels need")
    add_all(group, OPTIONS)


def group_of(options: Any, ranks: int, hccl_buffer_mib: int | None = None) -> GroupSpec:
    """Returns the group of `ranks` ranks on the nodes that the options name.

    Args:
        hccl_buffer_mib: as in GroupSpec.

    Raises:
        MissingPrecondition: the options contradict each other.
    """
    if problem := _NODES.contradiction(options):
        raise MissingPrecondition(problem)
    return _NODES.spec(options, ranks, nproc_per_node=options.ep_nproc_per_node, hccl_buffer_mib=hccl_buffer_mib)


def ep_size(cells: Mapping[str, str]) -> int | None:
    """Returns how many devices share the experts of a row; None where its cell is empty. Raises InvalidRow."""
    text = cells.get(EP_SIZE, "").strip()
    if not text:
        return None
    size = whole(text)
    if not size:
        raise InvalidRow(
            f"column {EP_SIZE!r}: {text!r} is not the number of devices that share the experts; correct the cell"
        )
    return size


class OfRanks(Sequence[Any]):
    """Something that each rank of a group has; that of the last one asked for is kept.

    What other ranks have is drawn again, which a row's seed makes possible, where the check asks for it.
    """

    def __init__(self, of_rank: Callable[[int], Any], ranks: int) -> None:
        """`of_rank` gives what a rank has."""
        self._of_rank = lru_cache(maxsize=1)(of_rank)
        self._ranks = ranks

    def __getitem__(self, rank: Any) -> Any:
        if not 0 <= rank < self._ranks:
            raise IndexError(rank)
        return self._of_rank(rank)

    def __len__(self) -> int:
        return self._ranks
