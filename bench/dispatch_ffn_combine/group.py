"""DispatchFFNCombine's group: the options that describe it, which group a row needs, and its ranks' experts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bench.declared_options import Scope, add_all, declare
from bench.errors import InvalidRow, MissingPrecondition
from bench.groups.options import NodeOptions
from bench.groups.spec import GroupSpec
from database.numbers import whole
from database.option_types import at_least
from database.schema import EP_SIZE

if TYPE_CHECKING:
    import pytest

_PREFIX = "--dispatch-ffn-combine-"
_NODES = NodeOptions(_PREFIX)


_SCOPE = Scope.RUNNING | Scope.KERNELS
OPTIONS = (
    declare(
        f"{_PREFIX}ep-size",
        _SCOPE,
        type=at_least(1),
        default=16,
        metavar="N",
        help=f"devices that share the experts, for rows whose {EP_SIZE!r} is empty (default: %(default)s)",
    ),
    declare(
        f"{_PREFIX}nproc-per-node",
        _SCOPE,
        type=at_least(1),
        metavar="N",
        help="the most ranks on a node (default: one for each of its devices, and 2 on a CPU)",
    ),
    *_NODES.declared(_SCOPE),
)


def add_options(parser: pytest.Parser) -> None:
    """The options of `pytest bench/` that are this operator's."""
    group = parser.getgroup("dispatch-ffn-combine", "DispatchFFNCombine: the group of devices that its rows need")
    add_all(group, OPTIONS)


def group_of(cells: Mapping[str, str], options: Any) -> GroupSpec:
    """The group that a row needs. Raises InvalidRow, MissingPrecondition."""
    ranks = ep_size(cells, options.dispatch_ffn_combine_ep_size)
    if problem := _NODES.contradiction(options):
        raise MissingPrecondition(problem)
    return _NODES.spec(options, ranks, nproc_per_node=options.dispatch_ffn_combine_nproc_per_node)


def ep_size(cells: Mapping[str, str], default: int) -> int:
    """How many devices share the experts of a row. Raises InvalidRow."""
    text = cells.get(EP_SIZE, "").strip()
    size = whole(text) if text else default
    if not size:
        raise InvalidRow(
            f"column {EP_SIZE!r}: {text!r} is not the number of devices that share the experts; correct the cell"
        )
    return size


class Experts(Sequence[Any]):
    """One weight of every expert of a group, by the expert's number in the group.

    A rank has those of its own experts; those of the others are drawn again, which a row's seed
    makes possible, where the check asks for them.
    """

    def __init__(self, weights_of: Callable[[int], Sequence[Any]], which: int, per_rank: int, ranks: int) -> None:
        """
        Args:
            weights_of: a rank's weights, each (experts of a rank, ...).
            which: of them.
        """
        self._weights_of = weights_of
        self._which = which
        self._per_rank = per_rank
        self._ranks = ranks

    def __getitem__(self, expert: Any) -> Any:
        rank, local = divmod(int(expert), self._per_rank)
        if rank >= self._ranks:
            raise IndexError(expert)
        return self._weights_of(rank)[self._which][local]

    def __len__(self) -> int:
        return self._per_rank * self._ranks
