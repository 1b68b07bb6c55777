"""Chooses sizes of an axis that are spread geometrically, with the edges of tiles."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from opatlas.theory.patterns import Axis

#: Offsets of sizes at the edge of a tile and next to it.
OFFSETS = (-1, 0, 1)
#: Sizes at the edges of tiles and next to them that each shape gets besides.
_EDGES = tuple(tile + offset for tile in (64, 128, 256) for offset in OFFSETS)
#: The least number of sizes between two powers of two that spread sizes are chosen from: 8, 9 ... 15, 16, 18 ... 30.
_STEPS = 8


def size_candidates(axis: Axis, count: int) -> list[int]:
    """Returns the sizes that spread sizes are chosen from, ascending: twice as many as are wanted where there are."""
    if not axis.between:
        return list(axis.grid)
    first, last = axis.grid[0], axis.grid[-1]
    steps = _STEPS
    while True:
        rounded = {(steps + i << octave) // steps for octave in range(last.bit_length()) for i in range(steps)}
        found = {size for size in rounded | {*axis.grid, *_EDGES} if first <= size <= last}
        if len(found) >= min(2 * count, last - first + 1):
            return sorted(found)
        steps *= 2


def spread_sizes(sizes: Sequence[int], count: int, *, edges: bool = True) -> list[int]:
    """Returns the positions of up to `count` ascending sizes that are spread geometrically, and of the edges of tiles.

    The ends come first, then sizes in the middle of those before them, then edges.

    Args:
        edges: whether the edges of tiles are wanted.
    """
    if not sizes:
        return []
    chosen = [0]
    for left in range(min(count, len(sizes)) - 1, 0, -1):
        # An equal factor leads from the size before to the largest one in the steps that are left.
        before = sizes[chosen[-1]]
        wanted = before * (sizes[-1] / before) ** (1 / left)
        later = range(chosen[-1] + 1, len(sizes) - left + 1)
        chosen.append(min(later, key=lambda place: abs(log(sizes[place] / wanted))))
    at_edges = [place for place, size in enumerate(sizes) if edges and size in _EDGES]
    return list(dict.fromkeys([*(chosen[i] for i in _ends_first(len(chosen))), *at_edges]))


def _ends_first(count: int) -> list[int]:
    """Returns 0 ... count - 1: the ends, then the middle of each part between numbers that came before."""
    order = {0: None, count - 1: None}
    parts = [(0, count - 1)]
    for low, high in parts:
        if high - low > 1:
            middle = (low + high) // 2
            order[middle] = None
            parts += [(low, middle), (middle, high)]
    return list(order)
