"""Which tensors of a DispatchFFNCombine row are which, and the group that the row needs. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from opatlas.engine.expert_parallel import DEFAULT_EP_SIZE, dispatch_ffn_combine_bytes, ep_group, ep_size
from opatlas.engine.group_spec import GroupSpec
from opatlas.model.schema import INPUT_DTYPES, INPUT_SHAPES
from opatlas.model.slots import slot_words

#: Slots besides weights and scales: x, the experts' numbers, their weights.
_FIXED = 3


@dataclass(frozen=True)
class LayerSlots:
    """The input slots of a row by what they hold: x, w1, w2, experts, scale1, scale2, probabilities, perhaps a mask.

    Weights and scales are lists of tensors: of one for all experts, or of one for each expert of a rank.
    Source: vllm-ascend, csrc/mc2/dispatch_ffn_combine/op_host/dispatch_ffn_combine_def.cpp; the mask is there from
    version 0.20 on.

    Attributes:
        count: of all slots.
    """

    count: int

    @property
    def listed(self) -> int:
        """How many tensors each list has."""
        return (self.count - _FIXED) // 4

    @property
    def has_mask(self) -> bool:
        return (self.count - _FIXED) % 4 == 1

    @property
    def fits(self) -> bool:
        """Whether there are as many slots as a call can have."""
        return self.listed > 0 and (self.count - _FIXED) % 4 < 2

    @property
    def weights(self) -> tuple[range, range]:
        """Slots of w1 and of w2."""
        n = self.listed
        return range(1, 1 + n), range(1 + n, 1 + 2 * n)

    @property
    def experts(self) -> int:
        return 1 + 2 * self.listed

    @property
    def scales(self) -> tuple[range, range]:
        """Slots of scale1 and of scale2."""
        first, n = self.experts + 1, self.listed
        return range(first, first + n), range(first + n, first + 2 * n)

    @property
    def probabilities(self) -> int:
        return self.experts + 1 + 2 * self.listed

    @property
    def mask(self) -> int:
        return self.probabilities + 1


def group_of_layer(cells: Mapping[str, str], options: Any) -> GroupSpec:
    """Returns the group that a row needs. Raises InvalidRow, MissingPrecondition."""
    ranks = ep_size(cells) or options.ep_size or DEFAULT_EP_SIZE
    return ep_group(options, ranks, needed_bytes(cells))


def needed_bytes(cells: Mapping[str, str]) -> int:
    """Returns what a row needs of HCCL's buffer; 0 where its cells do not tell, which the replay then refuses."""
    words = slot_words(cells.get(INPUT_SHAPES, ""), cells.get(INPUT_DTYPES, ""), "")
    slots = LayerSlots(len(words))
    if not slots.fits:
        return 0
    try:
        m, h = map(int, words[0][0].split(","))
        _, k = map(int, words[slots.experts][0].split(","))
    except ValueError:
        return 0
    return dispatch_ffn_combine_bytes(m, h, k, element_bytes=1 if words[1][1] == "INT8" else 2)


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
