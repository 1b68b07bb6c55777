"""Theory rows as hypothesis strategies: what the sampling draws from, and the project's own property tests.

Every draw is a legal row within the memory budget; none is ever rejected.
"""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from database.errors import OpAtlasError
from shapes.catalog import Catalog, built_in_catalog
from shapes.choices import whole_number
from shapes.memory import GB
from shapes.models import BUILT_IN
from shapes.rows import TheoryRow
from shapes.sources import Targets
from shapes.space import Space

#: Where nobody says otherwise: the smallest memory of an NPU that serves.
DEFAULT_BUDGET_BYTES = 32 * GB


def theory_rows(
    kernel_type: str,
    *,
    targets: Targets | None = None,
    budget_bytes: int = DEFAULT_BUDGET_BYTES,
    catalog: Catalog | None = None,
) -> SearchStrategy[TheoryRow]:
    """Rows of a kernel type in the catalog's dtypes and formats; shrinks to the smallest of the first pattern.

    Args:
        targets: whose shapes; default: those of the built-in models, and of none in particular.
        budget_bytes: of all tensors of a row and the flush buffer.

    Raises:
        OpAtlasError: the catalog has no such kernel type, or nothing of it fits.
    """
    targets = targets or Targets(BUILT_IN, generic=True)
    kernel = (catalog or built_in_catalog()).kernel(kernel_type)
    spaces = [Space(kernel_type, pattern, pattern.forms, targets, budget_bytes) for pattern in kernel.patterns]
    if not any(map(len, spaces)):
        raise OpAtlasError(f"no row of {kernel_type} fits {budget_bytes / GB:g} GB: raise --max-hbm-gb")
    return rows_of(spaces)


def rows_of(spaces: Sequence[Space]) -> SearchStrategy[TheoryRow]:
    """Rows of several spaces, each as likely as another; not all of them empty."""
    filled = [space for space in spaces if len(space)]
    if not filled:
        return st.nothing()
    largest = max(space.size for space in filled)

    def row(number: int) -> TheoryRow:
        place, which = divmod(number, len(filled))
        return filled[which].row(place % filled[which].size)

    return whole_number(0, largest * len(filled) - 1).map(row)
