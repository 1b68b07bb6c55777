"""The options that say on which nodes groups run; each who needs groups has them under a prefix of his own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.declared_options import Option, Scope, declare
from bench.groups.spec import JOIN_TIMEOUT_S, LOOPBACK, NODES_JOIN_TIMEOUT_S, GroupSpec
from database.option_types import at_least, between, positive


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
