"""Rows of experts: their load, and of expert-parallel ones slots, sizes, group and HCCL's buffers. Imports no torch.

A capture records neither how many ranks share the experts nor how many experts there are. Sources: vllm-ascend,
csrc/mc2/dispatch_ffn_combine/op_host/dispatch_ffn_combine_def.cpp; op-plugin's pages of npu_moe_distribute_dispatch,
npu_moe_distribute_combine and their second versions.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from opatlas.options import Scope, at_least, declare
from opatlas.row.columns import EP_SIZE, INPUT_DTYPES, INPUT_SHAPES, OUTPUT_SHAPES
from opatlas.row.errors import InvalidRow, MissingPrecondition
from opatlas.row.slots import ALL_SLOTS, slot_words
from opatlas.run.group import GroupSpec, group_on_nodes, node_options_problem
from opatlas.run.inputs.row_slots import RowSlots
from opatlas.text import parse_whole

#: Number of slots of a DispatchFFNCombine besides weights and scales: x, the chosen experts, their probabilities.
_FIXED = 3
#: A larger number of ranks than any version of the kernels supports.
_MOST_RANKS = 1024
#: The slots of weights that travel with the tokens: of a dispatch, and of a combine.
_WEIGHTS, _SENT_WEIGHTS = 4, 10


_LOAD = re.compile(r"random|power law (?P<power>\d+(\.\d+)?)|(?P<rows>\d+(, ?\d+)*)")


def load_shares(load: str, experts: int, rows: int) -> list[float] | None:
    """Returns the share of the rows that each expert has, which is exact if they are counted, else that of a draw.

    Args:
        load: a cell of Expert Load.

    Returns:
        None for other text, and for numbers that are not those of so many experts and rows.
    """
    found = _LOAD.fullmatch(" ".join(load.lower().split()))
    if found is None:
        return None
    weights = [float(i + 1) ** -float(found["power"] or 0) for i in range(experts)]
    if found["rows"]:
        weights = list(map(float, found["rows"].split(",")))
        if len(weights) != experts or sum(weights) != rows:
            return None
    total = sum(weights) or 1.0
    return [weight / total for weight in weights]


def used_experts(shares: Iterable[float], rows: int) -> float:
    """Returns how many experts have rows on average, of rows that are drawn by shares.

    Rows are drawn with replacement, as stored rows were: of distinct choices of tokens slightly more have rows.
    """
    return sum(1 - (1 - share) ** rows for share in shares)


class LayerSlots(NamedTuple):
    """The slots of a DispatchFFNCombine row: x, w1, w2, experts, scale1, scale2, probabilities, perhaps a mask.

    Weights and scales are lists of tensors: one tensor for all experts, or one for each expert of a rank. vllm-ascend
    has the mask from version 0.20 on. `fits`: whether a call can have so many slots.
    """

    fits: bool
    weights: tuple[range, range]
    experts: int
    scales: tuple[range, range]
    probabilities: int
    has_mask: bool


def layer_slots(count: int) -> LayerSlots:
    """Returns the slots of a call with so many of them."""
    n, masks = divmod(count - _FIXED, 4)
    ends = [1, 1 + n, 1 + 2 * n, 2 + 2 * n, 2 + 3 * n, 2 + 4 * n]
    weights, scales = (range(*ends[:2]), range(*ends[1:3])), (range(*ends[3:5]), range(*ends[4:]))
    return LayerSlots(n > 0 and masks < 2, weights, ends[2], scales, ends[5], masks == 1)


def group_of_layer(cells: Mapping[str, str], options: Any) -> GroupSpec:
    """Returns the group that a row needs. Raises InvalidRow, MissingPrecondition."""
    ranks = ep_size(cells) or options.ep_size or DEFAULT_EP_SIZE
    return ep_group(options, ranks, needed_bytes(cells))


def needed_bytes(cells: Mapping[str, str]) -> int:
    """Returns the bytes of HCCL's buffer that a row needs; 0 for a row that its replay refuses."""
    words = slot_words(cells.get(INPUT_SHAPES, ""), cells.get(INPUT_DTYPES, ""), "", ALL_SLOTS)
    slots = layer_slots(len(words))
    if not slots.fits:
        return 0
    try:
        m, h = map(int, words[0][0].split(","))
        _, k = map(int, words[slots.experts][0].split(","))
    except ValueError:
        return 0
    return dispatch_ffn_combine_bytes(m, h, k, element_bytes=1 if words[1][1] == "INT8" else 2)


@dataclass(frozen=True)
class Exchange:
    """The sizes of an exchange of tokens, which are equal on all ranks.

    Attributes:
        tokens, width, top_k: each rank has (tokens, width), and each token goes to top_k experts.
        ranks: number of ranks that share the experts.
        experts: number of experts of each rank.
        most_tokens: total room for the tokens of all ranks; larger than their number if the ranks may differ.
    """

    tokens: int
    width: int
    top_k: int
    ranks: int
    experts: int
    most_tokens: int

    @property
    def all_experts(self) -> int:
        return self.ranks * self.experts

    @property
    def global_bs(self) -> int:
        """Returns the argument `global_bs`: 0 where every rank fills its room."""
        return 0 if self.is_uniform else self.most_tokens

    @property
    def is_uniform(self) -> bool:
        """Returns whether the tokens of every rank fill its room."""
        return self.most_tokens == self.tokens * self.ranks

    @property
    def needed_bytes(self) -> int:
        """Returns the needed bytes of HCCL's buffer."""
        most = -(-self.most_tokens // self.ranks)
        return moe_distribute_bytes(most, self.width, self.top_k, self.ranks, self.experts)


def group_of_dispatch(cells: Mapping[str, str], options: Any, first: int = 0) -> GroupSpec:
    """Returns the group that a dispatch row needs. Raises InvalidRow, MissingPrecondition."""
    found = dispatched(RowSlots("MoeDistributeDispatch", cells), first)
    return ep_group(options, found.ranks, found.needed_bytes)


def group_of_combine(cells: Mapping[str, str], options: Any, first: int = 0) -> GroupSpec:
    """Returns the group that a combine row needs. Raises InvalidRow, MissingPrecondition."""
    fitting = combined(RowSlots("MoeDistributeCombine", cells), first)
    found = _select_exchange(fitting, ep_size(cells), options.ep_size)
    return ep_group(options, found.ranks, found.needed_bytes)


def dispatched(row: RowSlots, first: int = 0) -> Exchange:
    """Returns the exchange of a dispatch, whose tokens are slot `first`. Raises InvalidRow for contradicting shapes.

    expand_x is (A, H), A = most_tokens min(E, k); the counts of experts are (E), the counts of ranks (R E). If weights
    are dispatched too, the counts of ranks have 2 k most_tokens more numbers for every eight ranks.
    """
    bs, h, k, a, experts, counts = row.sizes("; " * first + "bs,h; bs,k -> a,h; ; ; experts; counts")
    row.expect(bs * k * experts and not a % min(experts, k), OUTPUT_SHAPES, _NO_EXCHANGE, _CORRECT)
    most = a // min(experts, k)
    fitting = [
        Exchange(bs, h, k, ranks, experts, most)
        for ranks in range(1, _MOST_RANKS + 1)
        if counts == ranks * experts + _room(most, k, ranks, row.has(first + _WEIGHTS)) and most >= bs * ranks
    ]
    row.expect(fitting, OUTPUT_SHAPES, _NO_EXCHANGE, _CORRECT)
    belongs = f"the shapes belong to {fitting[0].ranks} ranks"
    row.expect(ep_size(row.cells) in (None, fitting[0].ranks), EP_SIZE, belongs, "correct the cell")
    return fitting[0]


def combined(row: RowSlots, first: int = 0) -> list[Exchange]:
    """Returns the exchanges that fit a combine, whose results are slot `first`.

    There are several if the shapes fit several numbers of ranks. If uniform exchanges fit, only these are returned.

    Raises:
        InvalidRow: no exchange fits.
    """
    a, h, bs, k, counts = row.sizes("; " * first + "a,h; bs,k; ; counts")
    weighted = row.has(first + _SENT_WEIGHTS)
    fitting = [
        Exchange(bs, h, k, ranks, experts, a // least)
        for ranks in range(1, _MOST_RANKS + 1)
        for least in range(1, k + 1)
        if bs and a % least == 0 and a // least >= bs * ranks
        for experts in _experts(counts - _room(a // least, k, ranks, weighted), ranks)
        if min(experts, k) == least
    ]
    row.expect(fitting, INPUT_SHAPES, _NO_EXCHANGE, _CORRECT)
    return [found for found in fitting if found.is_uniform] or fitting


_NO_EXCHANGE = "no exchange of tokens has these shapes between ranks that have equally many tokens and experts"
_CORRECT = "correct the shape that does not fit"


def _select_exchange(fitting: Sequence[Exchange], named: int | None, wanted: int | None) -> Exchange:
    """Returns the exchange of the right number of ranks. Raises InvalidRow, MissingPrecondition.

    Args:
        named: number of ranks in the row's cell; None for an empty cell.
        wanted: number of ranks of --ep-size, for rows with an empty cell.
    """
    if named is None and len({found.ranks for found in fitting}) == 1:
        return fitting[0]
    ranks = named or wanted or DEFAULT_EP_SIZE
    for found in fitting:
        if found.ranks == ranks:
            return found
    possible = ", ".join(map(str, sorted({found.ranks for found in fitting})))
    if named is not None:
        raise InvalidRow(f"column {EP_SIZE!r} is {named}, and the shapes belong to {possible} ranks; correct the cell")
    raise MissingPrecondition(
        f"the shapes belong to {possible} ranks, not to {ranks}: name a number with --ep-size or in column {EP_SIZE!r}"
    )


def _room(most_tokens: int, k: int, ranks: int, weighted: bool) -> int:
    """Returns the number of elements after the counts: sums of a node, if weights are dispatched too."""
    return 2 * k * most_tokens * (ranks // 8) if weighted else 0


def _experts(counts: int, ranks: int) -> Iterator[int]:
    if counts > 0 and counts % ranks == 0:
        yield counts // ranks


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
        raise InvalidRow(f"column {EP_SIZE!r}: {text!r} is no number of devices that share experts; correct it")
    return size


class Computed(Sequence[Any]):
    """Values that are computed when the check reads them, of each rank or each expert; only the last one is kept.

    The seed of a row makes it possible to draw the tensors of another rank again.
    """

    def __init__(self, compute: Callable[[int], Any], count: int) -> None:
        """`compute` returns the value of a number below `count`."""
        self._compute = lru_cache(maxsize=1)(compute)
        self._count = count

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < self._count:
            raise IndexError(number)
        return self._compute(number)

    def __len__(self) -> int:
        return self._count


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
