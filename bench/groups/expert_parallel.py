"""Groups of expert parallelism: the options that describe one, and which group a row needs.

Kernels of this kind share the experts of a layer among the ranks of a group: rank r of R has the experts from
r E to r E + E - 1, E = experts / R.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
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
