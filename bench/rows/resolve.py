"""What the shapes of a row say about its call: which operand is transposed, which axis is joined.

A capture records shapes, not arguments. Each function here finds the argument that turns the
input shapes into the output shape, or answers None where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise, permutations, product
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
    """For each axis of `result` its axis in `source`; where several fit, the first that moves the fewest.

    No kernel is launched where axes of size 1 alone change places: an order that leaves the others as
    they are is taken only where no other fits.
    """
    if sorted(source) != sorted(result):
        return None
    axes = {size: [axis for axis, own in enumerate(source) if own == size] for size in source}
    fitting = []
    for chosen in product(*map(permutations, axes.values())):
        of_size = dict(zip(axes, map(iter, chosen), strict=True))
        fitting.append(tuple(next(of_size[size]) for size in result))
    launching = [order for order in fitting if not _ascends([axis for axis in order if source[axis] > 1])]
    return min(launching or fitting, key=lambda order: (_moved_axes(order), order))


def _moved_axes(order: Sequence[int]) -> int:
    """How many axes a permutation moves: all but its longest ascending subsequence, which stays as it was."""
    longest = [1] * len(order)
    for i, axis in enumerate(order):
        longest[i] += max((longest[j] for j in range(i) if order[j] < axis), default=0)
    return len(order) - max(longest, default=0)


def _ascends(numbers: Sequence[int]) -> bool:
    return all(first < second for first, second in pairwise(numbers))


def permutation_is_unique(source: Shape) -> bool:
    """Whether the shape that a permutation leads to tells which it is: where axes of size 1 stand does not matter."""
    sizes = [size for size in source if size > 1]
    return len(set(sizes)) == len(sizes)


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
