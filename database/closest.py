"""The names that a misspelt one may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str]) -> str:
    """` (did you mean ...?)` for a misspelt name; "" where nothing is like it."""
    by_lower = {other.lower(): other for other in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.5)
    return f" (did you mean {', '.join(by_lower[other] for other in found)}?)" if found else ""
