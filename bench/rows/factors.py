"""The operands of a product, as its row has them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.rows import resolve
from database.schema import INPUT_SHAPES

if TYPE_CHECKING:
    import torch

    from bench.rows.replay_row import ReplayRow


def factors(
    row: ReplayRow, a: torch.Tensor, b: torch.Tensor, *, transposed_b_first: bool, rank: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(..., M, K) and (..., K, N), views of what is stored; the output shape decides which are transposed.

    Args:
        rank: as for `ReplayRow.matrices`, of the product.
    """
    shape = row.product_shape(rank)
    batch, product = shape[:-2], shape[-2:]
    fitting = resolve.matrix_product(a.shape[-2:], b.shape[-2:], product, transposed_b_first=transposed_b_first)
    if fitting is None or resolve.broadcast([a.shape[:-2], b.shape[:-2]]) != batch:
        raise row.refuse(
            INPUT_SHAPES,
            f"{tuple(a.shape)} and {tuple(b.shape)}, as they are or transposed, have no product of the shape "
            f"{row.output_shape()}",
            "correct one of the three shapes",
        )
    a_is_transposed, b_is_transposed = fitting
    return a.mT if a_is_transposed else a, b.mT if b_is_transposed else b
