"""Devices as a grid: which of them a group takes, and what links its members at most.

Ranks are coordinates in a grid whose last dimension counts fastest: on a grid of 48, 8 and 2, rank 19 is die 1 of
chip 1 in pod 1. The tier of some ranks is the outermost dimension in which they differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from database.communication import TIERS


class NoGroup(ValueError):
    """A grid that does not hold the group; the message says why."""


@dataclass(frozen=True)
class Grid:
    """Attributes: shape: how many there are in each dimension, outermost first."""

    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.shape) <= len(TIERS) or min(self.shape) < 1:
            raise ValueError(f"{self}: a grid has 1 to {len(TIERS)} dimensions of at least 1")

    def __str__(self) -> str:
        return " x ".join(map(str, self.shape))

    @property
    def size(self) -> int:
        """How many ranks it holds."""
        return prod(self.shape)

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Where a rank is."""
        found = []
        for extent in reversed(self.shape):
            rank, at = divmod(rank, extent)
            found.append(at)
        return tuple(reversed(found))

    def tier_of(self, ranks: Sequence[int]) -> int:
        """The outermost dimension in which some ranks differ. Raises NoGroup for fewer than two of them."""
        if len(set(ranks)) < 2:
            raise NoGroup("one device alone communicates with nobody")
        places = zip(*map(self.coordinates, ranks), strict=True)
        return next(dimension for dimension, values in enumerate(places) if len(set(values)) > 1)

    def group(self, num_devices: int, tier: int | None = None) -> tuple[int, ...]:
        """The ranks of a group, from 0 on.

        Neighbours, where these span the tier. Where too few of them do, members are taken from as many
        places of the tier's dimension as there are, as evenly as possible: two of tier 1 on 48 x 8 x 2 are
        ranks 0 and 2, and all that they send crosses that tier.

        Args:
            tier: whose dimension the members span, sharing their places in those before it; None: that of
                neighbours.

        Raises:
            NoGroup: the grid does not hold it.
        """
        if num_devices > self.size:
            raise NoGroup(f"the grid {self} has {self.size} devices, and {num_devices} are needed")
        neighbours = tuple(range(num_devices))
        own_tier = self.tier_of(neighbours)
        if tier is None or tier == own_tier:
            return neighbours
        if not 0 <= tier < len(self.shape):
            raise NoGroup(f"the grid {self} has no tier {tier}: it has {len(self.shape)} dimensions, from 0 on")
        # Devices of one place of the tier's dimension.
        inner = prod(self.shape[tier + 1 :])
        places = min(num_devices, self.shape[tier])
        if num_devices > inner * self.shape[tier]:
            raise NoGroup(
                f"{num_devices} devices of the grid {self} cannot share tier {tier}, which links "
                f"{inner * self.shape[tier]} at most: they are of tier {own_tier}"
            )
        if places < 2:
            raise NoGroup(f"tier {tier} of the grid {self} links nothing: its dimension is {self.shape[tier]}")
        share, more = divmod(num_devices, places)
        return tuple(place * inner + at for place in range(places) for at in range(share + (place < more)))
