"""What a row takes of a device's memory."""

from __future__ import annotations

from math import prod

from database.dtypes import known_dtype
from database.errors import OpAtlasError
from shapes.rows import TheoryRow


def row_bytes(row: TheoryRow) -> int:
    """Bytes of all input and output tensors, as they are stored.

    Raises:
        OpAtlasError: a dtype whose size is not known; guessing one would let a row through that
            does not fit.
    """
    total = 0
    for slot in (*row.inputs, *row.outputs):
        if slot.absent:
            continue
        dtype = known_dtype(slot.dtype)
        if dtype is None:
            raise OpAtlasError(
                f"a theory row of {row.kernel_type} has the dtype {slot.dtype!r}, whose size is not known: "
                f"add it to database/dtypes.py, or correct the row"
            )
        total += prod(slot.shape) * dtype.bytes
    return total
