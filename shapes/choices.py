"""Whole numbers that a seed alone decides.

hypothesis mixes constants that it finds in the source of whatever modules are loaded into the numbers
that it draws, where they lie in range: the same seed would give other rows in another process. No
source has a number near _OFFSET, so that numbers are drawn there, and brought back.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

#: Written as a power, because a constant here would be one of those that hypothesis finds.
_OFFSET = 3**45


def whole_number(low: int, high: int) -> SearchStrategy[int]:
    """A whole number in low ... high; shrinks to `low`."""
    if low > high:
        raise ValueError(f"no whole number in {low} ... {high}")
    return st.integers(_OFFSET, _OFFSET + high - low).map(lambda drawn: drawn - _OFFSET + low)
