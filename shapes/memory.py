"""What a row takes of a device's memory."""

from __future__ import annotations

from math import prod

from database.dtypes import known_dtype
from database.errors import OpAtlasError
from shapes.rows import TheoryRow

GB = 10**9
#: Written between the samples to empty the last-level cache. Twice the largest there is: 192 MB on an
#: NPU, 50 MB on an H100; servers' CPUs have up to 256 MB that one core can reach.
FLUSH_BUFFER_BYTES = 512 * 10**6


def element_bytes(kernel_type: str, dtype: str) -> int:
    """Bytes of an element.

    Raises:
        OpAtlasError: a dtype whose size is not known; guessing one would let a row through that
            does not fit.
    """
    known = known_dtype(dtype)
    if known is None:
        raise OpAtlasError(
            f"a theory row of {kernel_type} has the dtype {dtype!r}, whose size is not known: "
            f"add it to database/dtypes.py, or correct the row"
        )
    return known.bytes


def row_bytes(row: TheoryRow) -> int:
    """Bytes of all input and output tensors, as they are stored. Raises OpAtlasError."""
    return sum(
        prod(slot.shape) * element_bytes(row.kernel_type, slot.dtype)
        for slot in (*row.inputs, *row.outputs)
        if not slot.absent
    )
