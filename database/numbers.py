"""Numbers in text: ASCII digits, and no more of them than 64 bits hold.

`int` and `float` also take digits of other scripts, `1_000`, and as many digits as there are.
"""

from __future__ import annotations

#: A whole number of so many digits is less than 2**63.
MOST_DIGITS = 18


def whole(text: str) -> int | None:
    """The whole number, 0 or more, that a text is; None if it is something else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else None


def real(text: str) -> float | None:
    """The number that a text is, which may be infinite or NaN; None if it is something else."""
    if not text.isascii() or "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None
