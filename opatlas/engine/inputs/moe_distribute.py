"""The sizes of an exchange of tokens, told from the shapes of a row. Imports no torch.

A capture records neither how many ranks share the experts nor how many experts there are: shapes tell.
Source: op-plugin's pages of npu_moe_distribute_dispatch, _combine and their second versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opatlas.engine.expert_parallel import DEFAULT_EP_SIZE, ep_group, ep_size, moe_distribute_bytes
from opatlas.engine.group_spec import GroupSpec
from opatlas.errors import CellError
from opatlas.model.errors import InvalidRow, MissingPrecondition
from opatlas.model.schema import (
    EP_SIZE,
    INPUT_SHAPES,
    INPUT_SLOTS,
    OUTPUT_SHAPES,
    OUTPUT_SLOTS,
)
from opatlas.model.slots import Slot, parse_slots

#: More ranks than any version of the kernels takes.
_MOST_RANKS = 1024
#: Of a dispatch: x, the experts, their weights; expand_x, the counts of experts, those of ranks.
_X, _IDS, _WEIGHTS = 0, 1, 4
_EXPAND_X, _OF_EXPERTS, _OF_RANKS = 0, 3, 4
#: Of a combine: expand_x, the experts, the counts of ranks, the weights as they were dispatched.
_EXPANDED, _CHOSEN, _COUNTS, _SENT_WEIGHTS = 0, 1, 3, 10


@dataclass(frozen=True)
class Exchange:
    """Sizes of an exchange, alike on all ranks.

    Attributes:
        tokens, width, top_k: each rank has (tokens, width), and each token goes to top_k experts.
        ranks: that share the experts.
        experts: of each rank.
        most_tokens: of all ranks together, for which there is room: more than they have where ranks may differ.
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
        """The argument of that name: 0 where every rank has as many tokens as there is room for."""
        return 0 if self.is_uniform else self.most_tokens

    @property
    def is_uniform(self) -> bool:
        """Whether every rank has as many tokens as there is room for."""
        return self.most_tokens == self.tokens * self.ranks

    @property
    def needed_bytes(self) -> int:
        """What it needs of HCCL's buffer."""
        most = -(-self.most_tokens // self.ranks)
        return moe_distribute_bytes(most, self.width, self.top_k, self.ranks, self.experts)


def group_of_dispatch(cells: Mapping[str, str], options: Any) -> GroupSpec:
    """Returns the group that a row of a dispatch needs. Raises InvalidRow, MissingPrecondition."""
    found = dispatched(*_slots(cells), cells)
    return ep_group(options, found.ranks, found.needed_bytes)


def group_of_combine(cells: Mapping[str, str], options: Any) -> GroupSpec:
    """Returns the group that a row of a combine needs. Raises InvalidRow, MissingPrecondition."""
    found = _chosen(combined(_slots(cells)[0], cells), ep_size(cells), options.ep_size)
    return ep_group(options, found.ranks, found.needed_bytes)


def dispatched(inputs: Sequence[Slot], outputs: Sequence[Slot], cells: Mapping[str, str]) -> Exchange:
    """Returns the exchange of a dispatch, which its shapes tell. Raises InvalidRow where they contradict each other.

    expand_x is (A, H), A = most_tokens min(E, k); the experts' counts are (E), those of ranks (R E). Where weights are
    dispatched too, the latter has room for 2 k most_tokens numbers for each eight ranks more.
    """
    (bs, h), (of_ids, k) = _pair(inputs, _X, INPUT_SHAPES, cells), _pair(inputs, _IDS, INPUT_SHAPES, cells)
    a, width = _pair(outputs, _EXPAND_X, OUTPUT_SHAPES, cells)
    (experts,), (counts,) = (_line(outputs, slot, OUTPUT_SHAPES, cells) for slot in (_OF_EXPERTS, _OF_RANKS))
    if of_ids != bs or width != h or not bs * k * experts or a % min(experts, k):
        raise _contradiction(OUTPUT_SHAPES, cells)
    most = a // min(experts, k)
    weighted = _is_there(inputs, _WEIGHTS)
    fitting = [
        Exchange(bs, h, k, ranks, experts, most)
        for ranks in range(1, _MOST_RANKS + 1)
        if counts == ranks * experts + _room(most, k, ranks, weighted) and most >= bs * ranks
    ]
    if not fitting:
        raise _contradiction(OUTPUT_SHAPES, cells)
    if (named := ep_size(cells)) not in (None, fitting[0].ranks):
        raise InvalidRow(
            f"column {EP_SIZE!r} is {named}, and the shapes are those of {fitting[0].ranks} ranks; correct the cell"
        )
    return fitting[0]


def combined(inputs: Sequence[Slot], cells: Mapping[str, str]) -> list[Exchange]:
    """Returns the exchanges that a combine may undo; there are several where its shapes leave open how many ranks
    share the experts. Those for which every rank has as many tokens as there is room for come alone, if there is one.

    Raises:
        InvalidRow: there is none.
    """
    (a, h), (bs, k) = _pair(inputs, _EXPANDED, INPUT_SHAPES, cells), _pair(inputs, _CHOSEN, INPUT_SHAPES, cells)
    (counts,) = _line(inputs, _COUNTS, INPUT_SHAPES, cells)
    weighted = _is_there(inputs, _SENT_WEIGHTS)
    fitting = [
        Exchange(bs, h, k, ranks, experts, a // least)
        for ranks in range(1, _MOST_RANKS + 1)
        for least in range(1, k + 1)
        if bs and a % least == 0 and a // least >= bs * ranks
        for experts in _experts(counts - _room(a // least, k, ranks, weighted), ranks)
        if min(experts, k) == least
    ]
    if not fitting:
        raise _contradiction(INPUT_SHAPES, cells)
    return [found for found in fitting if found.is_uniform] or fitting


def _chosen(fitting: Sequence[Exchange], named: int | None, wanted: int | None) -> Exchange:
    """The exchange of so many ranks. Raises InvalidRow, MissingPrecondition.

    Args:
        named: what the row's cell says; None where it is empty.
        wanted: what the user says of rows that do not tell it.
    """
    if named is None and len({found.ranks for found in fitting}) == 1:
        return fitting[0]
    ranks = named or wanted or DEFAULT_EP_SIZE
    for found in fitting:
        if found.ranks == ranks:
            return found
    possible = ", ".join(map(str, sorted({found.ranks for found in fitting})))
    if named is not None:
        raise InvalidRow(
            f"column {EP_SIZE!r} is {named}, and the shapes are those of {possible} ranks; correct the cell"
        )
    raise MissingPrecondition(
        f"the shapes are those of {possible} ranks, and not of {ranks}: name one with --ep-size or in {EP_SIZE!r}"
    )


def _room(most_tokens: int, k: int, ranks: int, weighted: bool) -> int:
    """Numbers besides the counts: what a node has reduced already, where weights are dispatched too."""
    return 2 * k * most_tokens * (ranks // 8) if weighted else 0


def _experts(counts: int, ranks: int) -> Iterator[int]:
    if counts > 0 and counts % ranks == 0:
        yield counts // ranks


def _slots(cells: Mapping[str, str]) -> tuple[Sequence[Slot], Sequence[Slot]]:
    def of(columns: tuple[str, str, str]) -> Sequence[Slot]:
        shapes, dtypes, formats = (cells.get(column, "") for column in columns)
        return parse_slots(shapes, dtypes, formats, columns)

    try:
        return of(INPUT_SLOTS), of(OUTPUT_SLOTS)
    except CellError as error:
        raise InvalidRow(f"{error}; correct the cell, or ingest the capture again") from None


def _is_there(slots: Sequence[Slot], slot: int) -> bool:
    return slot < len(slots) and not slots[slot].absent


def _pair(slots: Sequence[Slot], slot: int, column: str, cells: Mapping[str, str]) -> tuple[int, int]:
    a, b = _shape(slots, slot, 2, column, cells)
    return a, b


def _line(slots: Sequence[Slot], slot: int, column: str, cells: Mapping[str, str]) -> tuple[int]:
    (a,) = _shape(slots, slot, 1, column, cells)
    return (a,)


def _shape(slots: Sequence[Slot], slot: int, axes: int, column: str, cells: Mapping[str, str]) -> tuple[int, ...]:
    if not _is_there(slots, slot) or len(slots[slot].shape) != axes:
        raise InvalidRow(
            f"column {column!r} is {cells.get(column, '')!r}: slot {slot} must be there, with {axes} axes; "
            "restore it from the capture"
        )
    return slots[slot].shape


def _contradiction(column: str, cells: Mapping[str, str]) -> InvalidRow:
    return InvalidRow(
        f"column {column!r} is {cells.get(column, '')!r}: these are the shapes of no exchange of tokens between ranks "
        "that have equally many tokens and experts; correct the shape that does not fit"
    )
