"""Theory rows as hypothesis strategies: what the sampling draws from, and the project's own property tests.

Every draw is a legal row within the memory budget; none is ever rejected.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from database.errors import OpAtlasError
from shapes.built_in import BUILT_IN
from shapes.catalog import Catalog, built_in_catalog
from shapes.choices import whole_number
from shapes.memory import GB
from shapes.rows import TheoryRow
from shapes.sources import Targets
from shapes.space import Space

ROWS_OF_SAMPLE = 16
#: Enough for no two to be alike, and few enough for hypothesis to draw all of them alike.
_SAMPLES = 1 << 24
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
    """Rows of several spaces, each of these as likely as another; nothing where all are empty."""
    numbered = _Numbered(spaces)
    return whole_number(0, numbered.size - 1).map(numbered.row) if numbered.size else st.nothing()


def samples_of(spaces: Sequence[Space]) -> SearchStrategy[list[TheoryRow]]:
    """A few rows at a time, for large samples: hypothesis takes most of a millisecond for whatever it draws.

    What is drawn is the number of a sample, from which those of its rows follow. So these do not shrink.
    """
    numbered = _Numbered(spaces)

    def rows(sample: int) -> list[TheoryRow]:
        digests = (blake2b(f"{sample}/{i}".encode(), digest_size=8).digest() for i in range(ROWS_OF_SAMPLE))
        return [numbered.row(int.from_bytes(digest, "big") % numbered.size) for digest in digests]

    return whole_number(0, _SAMPLES - 1).map(rows) if numbered.size else st.nothing()


class _Numbered:
    """The rows of several spaces by number, those of each in turn."""

    def __init__(self, spaces: Sequence[Space]) -> None:
        self._filled = [space for space in spaces if len(space)]
        self.size = max((space.size for space in self._filled), default=0) * len(self._filled)

    def row(self, number: int) -> TheoryRow:
        place, which = divmod(number, len(self._filled))
        return self._filled[which].row(place % self._filled[which].size)
