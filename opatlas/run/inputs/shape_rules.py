"""Rules of shapes, and what they tell of the operands of a row: factors, scales and biases, indexed axes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, pairwise, permutations, product
from typing import TYPE_CHECKING

from opatlas.row.columns import INPUT_DTYPES, INPUT_SHAPES, OUTPUT_DTYPES, OUTPUT_SHAPES
from opatlas.row.errors import Unsupported
from opatlas.row.slots import FP8

if TYPE_CHECKING:
    import torch

    from opatlas.run.inputs.replay_row import ReplayRow


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


def factors(
    row: ReplayRow, a: torch.Tensor, b: torch.Tensor, *, transposed_b_first: bool, rank: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the factors (..., M, K) and (..., K, N) as views; the shape of the output shows which are transposed.

    Args:
        rank: number of axes of the product; see `ReplayRow.matrices`.

    Raises:
        InvalidRow: the factors have no product of the shape of the output.
    """
    shape = row.product_shape(rank)
    batch, product = shape[:-2], shape[-2:]
    fitting = matrix_product(a.shape[-2:], b.shape[-2:], product, transposed_b_first=transposed_b_first)
    if fitting is None or broadcast([a.shape[:-2], b.shape[:-2]]) != batch:
        raise row.refuse(
            INPUT_SHAPES,
            f"{tuple(a.shape)} and {tuple(b.shape)}, as they are or transposed, have no product of the shape "
            f"{row.output_shape()}",
            "correct one of the three shapes",
        )
    a_is_transposed, b_is_transposed = fitting
    return a.mT if a_is_transposed else a, b.mT if b_is_transposed else b


#: Largest absolute value of INT8 and FP8 operands, so that a product fits into FLOAT16 without a scale.
LARGEST = 16


def expect_int8(row: ReplayRow, *slots: int) -> None:
    """Raises Unsupported for a slot of another dtype than INT8: torch has no INT4."""
    for slot in slots:
        if row.has(slot) and row.input_slots[slot].dtype != "INT8":
            raise Unsupported(f"{row.kernel_type} is replayed for INT8 operands only: slot {slot} is not INT8")


def is_fp8(row: ReplayRow, *slots: int) -> bool:
    """Returns whether the operands are FP8, not INT8. Raises Unsupported for other operands, and for both in a row."""
    dtypes = {row.input_slot(slot).dtype for slot in slots}
    if dtypes <= FP8:
        return True
    if dtypes & FP8:
        raise Unsupported(f"{row.kernel_type} is replayed for operands of one kind, both FP8 or both INT8")
    expect_int8(row, *slots)
    return False


def expect_real_product(row: ReplayRow, bias_slot: int | None) -> None:
    """Refuses integers as the result and as the bias of a product in FP8."""
    real = not row.output_slots or row.output_dtype().is_floating_point
    row.expect(real, OUTPUT_DTYPES, "a product in FP8 has real results", "correct the dtype of the output")
    real = bias_slot is None or row.input_dtype(bias_slot).is_floating_point
    problem = f"slot {bias_slot} (bias) is added to a product in FP8, so it is real"
    row.expect(real, INPUT_DTYPES, problem, "correct its dtype")


#: Columns of x, and rows and columns of a weight, that share a scale in a product with scales of blocks (DeepSeek-V3).
SCALE_BLOCK = 128


def blocks(size: int) -> int:
    """Returns the number of blocks of an axis; the last block may be smaller."""
    return -(-size // SCALE_BLOCK)


def scale_of_blocks(row: ReplayRow, slot: int, weight: torch.Tensor, stored_by_columns: bool) -> torch.Tensor:
    """Returns the scales (..., K / 128, N / 128) of the blocks of a weight (..., K, N).

    Args:
        stored_by_columns: whether the row has the weight as (..., N, K); it has the scales in the same order.

    Raises:
        InvalidRow: the scales have another shape or dtype.
    """
    *batch, k, n = weight.shape
    shape = (*batch, blocks(n), blocks(k)) if stored_by_columns else (*batch, blocks(k), blocks(n))
    row.expect_shape(slot, shape, meaning=f"the scale of each {SCALE_BLOCK} x {SCALE_BLOCK} block")
    is_float = row.input_slots[slot].dtype == "FLOAT"
    row.expect(is_float, INPUT_DTYPES, f"slot {slot} has scales of blocks, which are FLOAT", "correct its dtype")
    scale = row.tensor(slot, *scale_range(k))
    return scale.mT if stored_by_columns else scale


#: torch_npu.float8_e8m0fnu and torch_npu.float4_e2m1fn_x2, of which calls take two numbers in a byte.
NPU_E8M0, NPU_FP4 = 293, 296


def scale_of_groups(row: ReplayRow, slot: int, weight: Shape, stored_by_columns: bool) -> torch.Tensor:
    """Returns the scales or offsets (1), (..., N) or (..., K / size, N) of groups along K of a weight (..., K, N).

    Args:
        stored_by_columns: see `scale_of_blocks`.

    Raises:
        InvalidRow: they have another shape.
    """
    *batch, k, n = weight
    own = row.tensor(slot, 0.5, 1.5)
    by_groups = own.dim() == len(weight)
    own = own.mT if stored_by_columns and by_groups else own
    groups = own.shape[-2] if by_groups else 1
    fits = own.shape in ((*batch, n), (*batch, groups, n), (1,)) and groups and not k % groups
    row.expect(fits, INPUT_SHAPES, f"slot {slot} must be (..., {n}), or (..., {k} / size, {n}) in the weight's order")
    return own


def are_by_columns(scales: Shape, n: int) -> bool:
    """Returns whether scales are (..., N, K / size): they tell the order of a square weight, whose shape does not."""
    return len(scales) > 1 and scales[-1] != n


def bias(row: ReplayRow, slot: int, k: int) -> torch.Tensor:
    """Returns a bias about as large as the sum of K products that it is added to, so that a missing bias shows.

    An INT32 bias is added to the sum of integers, a bias of another dtype to the scaled sum.
    """
    if row.input_slots[slot].dtype != "INT32":
        return row.tensor(slot, -8.0, 8.0)
    reach = int(LARGEST**2 / 2 * max(k, 1) ** 0.5)
    return row.integers(slot, -reach, reach)


def scale_range(k: int) -> tuple[float, float]:
    """Returns the range of scales with which sums of K products fill and seldom exceed the range of INT8."""
    return 0.25 / max(k, 1) ** 0.5, 0.75 / max(k, 1) ** 0.5


def gathered_axis(row: ReplayRow) -> int:
    """Returns the first axis that the indices (slot 1) may replace in the output. Raises InvalidRow."""
    source, indices, result = row.shape(0), row.shape(1), row.output_shape()
    for axis in range(len(source)):
        if result == source[:axis] + indices + source[axis + 1 :]:
            return axis
    raise row.refuse(OUTPUT_SHAPES, f"no axis of {source}, indexed by {indices}, gives this shape", "correct a shape")


def indexed_axes(row: ReplayRow, list_slot: int, first_slot: int) -> range:
    """Returns the adjacent axes that the index tensors, all slots from `first_slot` on, index. Raises InvalidRow.

    `list_slot` has an element for each axis up to the last indexed one.
    """
    rank, count = len(row.shape(0)), max(len(row.input_slots) - first_slot, 1)
    listed = row.shape(list_slot)
    end = listed[0] if len(listed) == 1 else 0
    problem = f"slot {list_slot} must be a list with an element for each axis up to the last indexed one"
    remedy = "correct its shape, or restore the missing index tensors"
    row.expect(count <= end <= rank, INPUT_SHAPES, f"{problem}: {count} to {rank}", remedy)
    return range(end - count, end)


def is_grid_index(row: ReplayRow) -> bool:
    """Returns whether an Index has the form of msmodeling's shape grid, `16,51;1;11;1 -> 11,51`.

    There slot 2 holds the indices. In a captured row slot 2 lists the steps of the axes, and slot 3 holds the indices.
    """
    if len(row.input_slots) != 4 or not row.shape(1) == row.shape(3) == (1,):
        return False
    source, listed = row.shape(0), row.shape(2)
    steps = (len(source),)
    return len(source) > 1 and len(listed) == 1 and (listed != steps or row.output_shape() == steps + source[1:])
