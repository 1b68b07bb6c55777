"""INT8 operands of products: whole numbers whose sums, and what is added to them and scales them, fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.errors import Unsupported

if TYPE_CHECKING:
    import torch

    from bench.rows.replay_row import ReplayRow

#: INT8 operands are whole numbers up to this, so that their product fits into FLOAT16 without a scale.
LARGEST = 16


def expect_int8(row: ReplayRow, *slots: int) -> None:
    """Raises Unsupported where one of these input slots is of another dtype: torch has no INT4."""
    for slot in slots:
        if row.has(slot) and row.input_slots[slot].dtype != "INT8":
            raise Unsupported(f"{row.kernel_type} is replayed for INT8 operands only, slot {slot} is not")


def bias(row: ReplayRow, slot: int, k: int) -> torch.Tensor:
    """In integers, about as large as the sums of K products that it is added to; else as the scaled ones: it shows."""
    if row.input_slots[slot].dtype != "INT32":
        return row.tensor(slot, -8.0, 8.0)
    reach = int(LARGEST**2 / 2 * max(k, 1) ** 0.5)
    return row.whole(slot, -reach, reach)


def scale_range(k: int) -> tuple[float, float]:
    """Scales with which products of K terms fill the range of INT8, and few go beyond it."""
    return 0.25 / max(k, 1) ** 0.5, 0.75 / max(k, 1) ** 0.5
