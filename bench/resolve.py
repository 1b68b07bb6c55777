"""What the shapes of a row say about its call: which operand is transposed, which axis is joined.

A capture records shapes, not arguments. Each function here finds the argument that turns the
input shapes into the output shape, or answers None where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The shape that `shapes` broadcast to, by numpy's rule."""
    rank = max(map(len, shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        wanted = {size for size in sizes if size != 1}
        if len(wanted) > 1:
            return None
        result.append(wanted.pop() if wanted else 1)
    return tuple(result)


def matrix_product(a: Shape, b: Shape, result: Shape, *, transposed_b_first: bool) -> tuple[bool, bool] | None:
    """Which of two matrices are stored transposed, in a product that gives `result` (M, N).

    Args:
        a: (M, K), or (K, M) where it is transposed; the first of the two that fits.
        b: (N, K), which is transposed, or (K, N).
        transposed_b_first: which of those two is taken where both fit, after `a` is decided.

    Returns:
        Whether a and b are transposed.
    """
    if len(result) != 2:
        return None
    for a_is_transposed in (False, True):
        m, k = reversed(a) if a_is_transposed else a
        for b_is_transposed in (transposed_b_first, not transposed_b_first):
            if b == ((result[1], k) if b_is_transposed else (k, result[1])) and m == result[0]:
                return a_is_transposed, b_is_transposed
    return None


def nz_matrix(stored: torch.Tensor) -> torch.Tensor:
    """The matrices that a tensor in FRACTAL_NZ stands for: (..., a, b, c, d) to (..., b * c, a * d).

    The format cuts a matrix into blocks of c rows and d columns (16 by 16 for halves, 16 by 32 for
    INT8) and stores, for each column of blocks, the blocks from top to bottom. The same for a
    weight, (4 axes), a stack of them (5 axes), and any dtype.
    """
    return stored.movedim(-4, -2).flatten(-4, -3).flatten(-2, -1)


def nz_shape(stored: Shape) -> Shape:
    """The shape of what `nz_matrix` makes of a tensor of this shape."""
    *batch, a, b, c, d = stored
    return (*batch, b * c, a * d)


def permutation(source: Shape, result: Shape) -> tuple[int, ...] | None:
    """For each axis of `result` its axis in `source`; where several fit, one that moves the fewest.

    An axis that keeps its place among those that are not moved is not moved itself, so the axes
    that stay are a longest common subsequence of both shapes. The others are taken in order.
    """
    if sorted(source) != sorted(result):
        return None
    rank = len(source)
    # common[i][j]: length of the longest common subsequence of source[i:] and result[j:].
    common = [[0] * (rank + 1) for _ in range(rank + 1)]
    for i in reversed(range(rank)):
        for j in reversed(range(rank)):
            longest = max(common[i + 1][j], common[i][j + 1])
            common[i][j] = max(longest, 1 + common[i + 1][j + 1]) if source[i] == result[j] else longest
    found: dict[int, int] = {}
    i = j = 0
    while i < rank and j < rank:
        if source[i] == result[j] and common[i][j] == 1 + common[i + 1][j + 1]:
            found[j] = i
            i, j = i + 1, j + 1
        elif common[i][j] == common[i][j + 1]:
            j += 1
        else:
            i += 1
    moved = [axis for axis in range(rank) if axis not in found.values()]
    for j in range(rank):
        if j not in found:
            found[j] = next(axis for axis in moved if source[axis] == result[j])
            moved.remove(found[j])
    return tuple(found[j] for j in range(rank))


def concatenation(parts: Sequence[Shape], result: Shape) -> int | None:
    """The first axis along which `parts`, laid end to end, give `result`."""
    if any(len(part) != len(result) for part in parts):
        return None
    for axis, size in enumerate(result):
        others_agree = all(_without(part, axis) == _without(result, axis) for part in parts)
        if others_agree and sum(part[axis] for part in parts) == size:
            return axis
    return None


def reduction(source: Shape, result: Shape, count: int | None = None) -> tuple[tuple[int, ...], bool] | None:
    """The first axes whose reduction turns `source` into `result`, and whether they are kept as ones.

    Args:
        count: how many axes are reduced; None where the row does not tell: as few as fit.
    """
    for number in range(len(source) + 1) if count is None else (count,):
        for axes in combinations(range(len(source)), number):
            if result == tuple(size for axis, size in enumerate(source) if axis not in axes):
                return axes, False
            if result == tuple(1 if axis in axes else size for axis, size in enumerate(source)):
                return axes, True
    return None


def repetition(source: Shape, result: Shape) -> tuple[int, ...] | None:
    """How often each axis of `result` repeats `source`, which gets leading axes of size 1."""
    if len(source) > len(result):
        return None
    padded = (1,) * (len(result) - len(source)) + source
    if any(size % part if part else size for part, size in zip(padded, result, strict=True)):
        return None
    return tuple(size // part if part else 1 for part, size in zip(padded, result, strict=True))


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]
