"""The names that a misspelt one may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def alike(name: str, known: Iterable[str], most: int, least: float) -> list[str]:
    """Those names that a name is like, upper or lower case, the likest first.

    Args:
        most: so many.
        least: how like they are at least, from 0 to 1 (the same).
    """
    by_lower = {other.lower(): other for other in known}
    return [by_lower[found] for found in difflib.get_close_matches(name.lower(), by_lower, most, least)]


def closest(name: str, known: Iterable[str], *, least: float = 0.5) -> str:
    """` (did you mean ...?)` for a misspelt name; "" where nothing is like it.

    Args:
        least: how like it must be at least, from 0 to 1.
    """
    found = alike(name, known, most=3, least=least)
    return f" (did you mean {', '.join(found)}?)" if found else ""
