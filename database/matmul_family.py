"""MatMulV2, MatMulV3 and MatMulCommon: one API, and the library chooses which of them runs.

So a call that one of them was captured for may run as another one on another day (database/siblings.py). Rows stay
rows of the type that the profiler saw; this page knows when two of their rows are one product that is only laid out
differently.
"""

from __future__ import annotations

from collections.abc import Mapping

from database.numbers import whole
from database.schema import INPUT_SLOTS, OUTPUT_SLOTS
from database.slots import slot_words

FAMILY = ("MatMulV2", "MatMulV3", "MatMulCommon")

_NZ = "FRACTAL_NZ"


def canonical_form(row: Mapping[str, str]) -> str | None:
    """Text that is equal for products (M,K; N,K -> M,N) which differ only in what is transposed.

    A transposed operand is another case with another duration: this finds a row where nothing
    matches exactly. Dtypes, formats and inputs beyond the two operands (a bias) still count.

    Args:
        row: cells by column name.

    Returns:
        None for a row that is no product of two matrices, or that does not say which dimension is K.
    """
    inputs = slot_words(*(row.get(column, "") for column in INPUT_SLOTS))
    outputs = slot_words(*(row.get(column, "") for column in OUTPUT_SLOTS))
    if len(inputs) < 2 or len(outputs) != 1:
        return None
    left, right, product = (_matrix(shape, form) for shape, _, form in (*inputs[:2], *outputs))
    if left is None or right is None or product is None:
        return None
    m, n = product
    k = left[1] if left[0] == m else left[0] if left[1] == m else None
    if k is None or sorted(right) != sorted((n, k)):
        return None
    dtypes_and_formats = ";".join(f"{dtype},{form}" for _, dtype, form in (*inputs, *outputs))
    return f"{m},{k},{n}|{dtypes_and_formats}|" + ";".join(shape for shape, _, _ in inputs[2:])


def _matrix(shape: str, form: str) -> tuple[int, int] | None:
    """Rows and columns; those of (a, b, c, d) in FRACTAL_NZ are b*c and a*d."""
    sizes = [size for word in shape.split(",") if (size := whole(word)) is not None]
    if len(sizes) != shape.count(",") + 1:
        return None
    if form == _NZ and len(sizes) == 4:
        return sizes[1] * sizes[2], sizes[0] * sizes[3]
    return (sizes[0], sizes[1]) if len(sizes) == 2 else None
