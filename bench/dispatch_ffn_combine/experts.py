"""The weights of all experts of a group, as a rank's reference sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


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
