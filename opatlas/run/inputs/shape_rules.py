"""Rules of shapes: broadcasting, transposed factors, permuted, concatenated, reduced and repeated axes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise, permutations, product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

Shape = tuple[int, ...]


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """Returns the shape to which `shapes` broadcast by the rule of numpy; None if the shapes do not broadcast."""
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
    """Returns which of two matrices are stored transposed in a product `result` (M, N); None if no storage fits.

    Args:
        a: (M, K), or (K, M) if transposed; (M, K) is tried first.
        b: (K, N), or (N, K) if transposed.
        transposed_b_first: whether (N, K) is tried before (K, N).

    Returns:
        Whether a is transposed, and whether b is.
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
    """Returns the matrices in plain layout of a tensor in FRACTAL_NZ: (..., a, b, c, d) to (..., b * c, a * d).

    The format cuts a matrix into blocks of c rows and d columns (16 by 16 for half types, 16 by 32 for INT8). Columns
    of blocks are stored one after the other, and each column is stored from top to bottom.
    """
    return stored.movedim(-4, -2).flatten(-4, -3).flatten(-2, -1)


def nz_shape(stored: Shape) -> Shape:
    """Returns the shape of the result of `nz_matrix` for a tensor of the shape `stored`."""
    *batch, a, b, c, d = stored
    return (*batch, b * c, a * d)


def permutation(source: Shape, result: Shape) -> tuple[int, ...] | None:
    """Returns for each axis of `result` its axis in `source`; None if no order fits.

    Of several fitting orders, the first order that moves the fewest axes is returned. An order that moves only axes of
    size 1 launches no kernel, and is the last choice.
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
    """Returns the number of axes that a permutation moves: all axes outside its longest ascending subsequence."""
    longest = [1] * len(order)
    for i, axis in enumerate(order):
        longest[i] += max((longest[j] for j in range(i) if order[j] < axis), default=0)
    return len(order) - max(longest, default=0)


def _ascends(numbers: Sequence[int]) -> bool:
    return all(first < second for first, second in pairwise(numbers))


def permutation_is_unique(source: Shape) -> bool:
    """Returns whether the permuted shape determines the permutation; the places of axes of size 1 do not matter."""
    sizes = [size for size in source if size > 1]
    return len(set(sizes)) == len(sizes)


def concatenation(parts: Sequence[Shape], result: Shape) -> int | None:
    """Returns the first axis along which `parts` can be concatenated to `result`; None if no axis fits."""
    if any(len(part) != len(result) for part in parts):
        return None
    for axis, size in enumerate(result):
        others_agree = all(_without(part, axis) == _without(result, axis) for part in parts)
        if others_agree and sum(part[axis] for part in parts) == size:
            return axis
    return None


def reduction(source: Shape, result: Shape, count: int | None = None) -> tuple[tuple[int, ...], bool] | None:
    """Returns the first axes whose reduction turns `source` into `result`, and whether they stay with size 1.

    Args:
        count: number of reduced axes; None: unknown, so that the smallest fitting number is used.

    Returns:
        None if no axes fit.
    """
    for number in range(len(source) + 1) if count is None else (count,):
        for axes in combinations(range(len(source)), number):
            if result == tuple(size for axis, size in enumerate(source) if axis not in axes):
                return axes, False
            if result == tuple(1 if axis in axes else size for axis, size in enumerate(source)):
                return axes, True
    return None


def repetition(source: Shape, result: Shape) -> tuple[int, ...] | None:
    """Returns how often each axis of `source`, padded with leading ones, repeats in `result`; None if none fits."""
    if len(source) > len(result):
        return None
    padded = (1,) * (len(result) - len(source)) + source
    if any(size % part if part else size for part, size in zip(padded, result, strict=True)):
        return None
    return tuple(size // part if part else 1 for part, size in zip(padded, result, strict=True))


def _without(shape: Shape, axis: int) -> Shape:
    return shape[:axis] + shape[axis + 1 :]
