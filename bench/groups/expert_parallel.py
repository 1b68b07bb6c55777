"""Groups of expert parallelism: the options that describe one, and which group a row needs.

Kernels of this kind share the experts of a layer among the ranks of a group: rank r of R has the experts from
r E to r E + E - 1, E = experts / R.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    """Adds the options of expert-parallel groups to those of `pytest bench/`."""
    group = parser.getgroup("dispatch-ffn-combine", "DispatchFFNCombine: the group of devices that its rows need")
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
    per_node = options.dispatch_ffn_combine_nproc_per_node
    return _NODES.spec(options, ranks, nproc_per_node=per_node, hccl_buffer_mib=hccl_buffer_mib)


def ep_size(cells: Mapping[str, str], default: int) -> int:
    """Returns how many devices share the experts of a row. Raises InvalidRow."""
    text = cells.get(EP_SIZE, "").strip()
    size = whole(text) if text else default
    if not size:
        raise InvalidRow(
            f"column {EP_SIZE!r}: {text!r} is not the number of devices that share the experts; correct the cell"
        )
    return size
