"""Groups of devices that share the experts of a layer: options, number of ranks, HCCL's buffer for tokens."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from opatlas.options import Scope, at_least, declare
from opatlas.row.columns import EP_SIZE
from opatlas.row.errors import InvalidRow, MissingPrecondition
from opatlas.run.group_spec import GroupSpec, group_on_nodes, node_options_problem
from opatlas.text import parse_whole

#: Number of ranks for rows that do not name their EP Size.
DEFAULT_EP_SIZE = 16

OPTIONS = (
    declare(
        "--ep-size",
        Scope.ROWS,
        type=at_least(1),
        metavar="N",
        help=f"number of devices that share the experts, for rows that do not name it; with --prof-path, that of the "
        f"profiled run (default: {DEFAULT_EP_SIZE}, and unknown with --prof-path)",
    ),
    declare(
        "--nproc-per-node",
        Scope.KERNELS,
        type=at_least(1),
        metavar="N",
        help="the most ranks on a node (default: one for each of its devices, and 2 on a CPU)",
    ),
)


def ep_group(options: Any, ranks: int, buffer_bytes: int) -> GroupSpec:
    """Returns the group of `ranks` ranks on the nodes that the options name.

    Args:
        buffer_bytes: bytes of HCCL's buffer that the rows of the group need.

    Raises:
        MissingPrecondition: the options contradict each other.
    """
    if problem := node_options_problem(options):
        raise MissingPrecondition(problem)
    buffer = hccl_buffer_mib(buffer_bytes)
    return group_on_nodes(options, ranks, nproc_per_node=options.nproc_per_node, hccl_buffer_mib=buffer)


def ep_size(cells: Mapping[str, str]) -> int | None:
    """Returns the number of devices that share the experts of a row; None for an empty cell. Raises InvalidRow."""
    text = cells.get(EP_SIZE, "").strip()
    if not text:
        return None
    size = parse_whole(text)
    if not size:
        raise InvalidRow(
            f"column {EP_SIZE!r}: {text!r} is not the number of devices that share the experts; correct the cell"
        )
    return size


class RankValues(Sequence[Any]):
    """A value of each rank of a group, computed when the check reads the value; only the last value is kept.

    The seed of a row makes it possible to draw the tensors of another rank again.
    """

    def __init__(self, compute: Callable[[int], Any], ranks: int) -> None:
        """`compute` returns the value of a rank."""
        self._compute = lru_cache(maxsize=1)(compute)
        self._ranks = ranks

    def __getitem__(self, rank: Any) -> Any:
        if not 0 <= rank < self._ranks:
            raise IndexError(rank)
        return self._compute(rank)

    def __len__(self) -> int:
        return self._ranks


# Kernels that communicate by themselves exchange tokens through the buffer of their communicator. HCCL_BUFFSIZE is its
# size in MiB when the communicator is created. A kernel refuses a row whose tokens do not fit.

HCCL_BUFFER_VARIABLE = "HCCL_BUFFSIZE"
#: HCCL's default.
_DEFAULT_MIB = 200
#: vllm-ascend's kernel reads the variable as a 16-bit number (dispatch_ffn_combine_tiling.cpp).
_MOST_MIB = 65535
_MIB = 1 << 20


def dispatch_ffn_combine_bytes(m: int, h: int, k: int, element_bytes: int) -> int:
    """Returns the bytes that DispatchFFNCombine needs for M tokens of width H, each sent to k experts.

    Source: vllm-ascend, csrc/mc2/dispatch_ffn_combine/op_host/dispatch_ffn_combine_tiling.cpp: 3 M k H bytes of INT8
    and 10 MiB. The tokens lie in a third of the buffer, in rows that are 32 bytes longer (op_kernel, same folder).

    Args:
        element_bytes: bytes of an element of a token during the transfer: 1 if the experts are INT8, else 2.
    """
    return 3 * m * k * (h * element_bytes + 32) + 10 * _MIB


def moe_distribute_bytes(bs: int, h: int, k: int, ranks: int, local_experts: int) -> int:
    """Returns the bytes that MoeDistributeDispatch and -Combine need for BS tokens of width H, each sent to k experts.

    Source: op-plugin's pages of npu_moe_distribute_dispatch and _v2: the largest of the sizes for A2 and A3 (the older
    and the newer kernel).
    """
    a2 = 2 * (bs * ranks * min(local_experts, k) * h * 2 + 2 * _MIB)
    a3 = 2 * (bs * 2 * (h + 128) * (ranks * local_experts + k + 1)) + 2 * _MIB
    token, result = _round_up(_round_up(2 * h, 32) + 64, 512), _round_up(2 * h, 512)
    newer_a3 = 2 * bs * (ranks * local_experts * token + (k + 1) * result)
    return max(a2, a3, newer_a3)


def _round_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def hccl_buffer_mib(needed_bytes: int) -> int | None:
    """Returns the size in MiB of the buffer for rows that need `needed_bytes`; None if HCCL's default is enough.

    The size is a power of two, so that rows of many sizes share few groups: a communicator keeps its buffer.
    """
    needed = -(-needed_bytes // _MIB)
    if needed <= _DEFAULT_MIB:
        return None
    return min(1 << (needed - 1).bit_length(), _MOST_MIB)


def expect_hccl_buffer(needed_bytes: int) -> None:
    """Raises MissingPrecondition if HCCL_BUFFSIZE is set to less than a row needs; for rows on NPUs."""
    text = os.environ.get(HCCL_BUFFER_VARIABLE, "")
    if text.isdecimal() and int(text) * _MIB < needed_bytes:
        needed = hccl_buffer_mib(needed_bytes) or _DEFAULT_MIB
        raise MissingPrecondition(
            f"{HCCL_BUFFER_VARIABLE} is {text} (MiB), and this row needs {-(-needed_bytes // _MIB)}: unset it, so that "
            f"each group gets the buffer that it needs, or export {HCCL_BUFFER_VARIABLE}={needed}"
        )
