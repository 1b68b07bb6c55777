"""Grids of devices: every group has exactly the tier asked for, and tiers partition the pairs."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opatlas.run.collectives.topology import Grid, ImpossibleGroup

A3 = Grid((48, 8, 2))
GRIDS = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple).map(Grid).filter(lambda grid: grid.size > 1)


@given(GRIDS, st.data())
def test_a_group_has_exactly_the_requested_tier(grid: Grid, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, grid.size))
    tier = data.draw(st.integers(0, len(grid.shape) - 1))
    try:
        group = grid.group(count, tier)
    except ImpossibleGroup:
        # By trying all: ranks that share the places before the tier's dimension, and span that.
        block = prod(grid.shape[tier:])
        assert grid.shape[tier] == 1 or count > block
        return
    assert len(set(group)) == count
    assert list(group) == sorted(group)
    assert group[0] >= 0
    assert group[-1] < grid.size
    assert grid.tier_of(group) == tier
    assert len({grid.coordinates(rank)[:tier] for rank in group}) == 1


@given(GRIDS, st.data())
def test_without_a_tier_they_are_neighbours(grid: Grid, data: st.DataObject) -> None:
    count = data.draw(st.integers(2, grid.size))
    assert grid.group(count) == tuple(range(count))
    assert grid.group(count, grid.tier_of(range(count))) == tuple(range(count))


@given(GRIDS)
def test_tiers_partition_the_pairs(grid: Grid) -> None:
    counts = Counter(grid.tier_of(pair) for pair in combinations(range(grid.size), 2))
    for tier, extent in enumerate(grid.shape):
        inner, blocks = prod(grid.shape[tier + 1 :]), prod(grid.shape[:tier])
        assert counts[tier] == blocks * inner * inner * extent * (extent - 1) // 2
    assert counts.total() == grid.size * (grid.size - 1) // 2


@pytest.mark.parametrize(
    ("count", "tier", "group"),
    [
        (2, None, (0, 1)),
        (2, 2, (0, 1)),
        (2, 1, (0, 2)),
        (2, 0, (0, 16)),
        (4, 1, (0, 1, 2, 3)),
        (8, 0, (0, 16, 32, 48, 64, 80, 96, 112)),
        (16, None, tuple(range(16))),
        (16, 1, tuple(range(16))),
    ],
)
def test_groups_of_an_a3(count: int, tier: int | None, group: tuple[int, ...]) -> None:
    assert A3.group(count, tier) == group


@pytest.mark.parametrize(
    ("grid", "count", "tier", "words"),
    [
        (A3, 769, None, "the grid 48 x 8 x 2 has 768 devices, and 769 are needed"),
        (A3, 3, 2, "cannot share tier 2, which links 2 at most: they are of tier 1"),
        (A3, 32, 1, "cannot share tier 1, which links 16 at most: they are of tier 0"),
        (Grid((128, 8)), 2, 2, "has no tier 2: it has 2 dimensions"),
        (Grid((1, 8)), 2, 0, "tier 0 of the grid 1 x 8 links nothing"),
        (A3, 1, None, "one device alone"),
    ],
)
def test_groups_that_a_grid_does_not_hold(grid: Grid, count: int, tier: int | None, words: str) -> None:
    with pytest.raises(ImpossibleGroup, match=words):
        grid.group(count, tier)


@pytest.mark.parametrize("shape", [(), (2, 2, 2, 2), (0, 8), (8, -1)])
def test_no_grids(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="1 to 3 dimensions"):
        Grid(shape)
