"""pytest's -k, for text that never became an item."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import pytest
from _pytest.mark.expression import Expression

from database.closest import closest


def keyword_filter(expression: str) -> Callable[[str], bool]:
    """Whether -k selects a text. Raises pytest.UsageError for an expression that pytest refuses too."""
    if not expression:
        return lambda text: True
    try:
        compiled = Expression.compile(expression)
    except Exception as error:  # SyntaxError, and a class of pytest's own before pytest 9
        said = getattr(error, "msg", None) or str(error)
        raise pytest.UsageError(
            f"-k {expression!r} is no expression ({said}): join parts of names by 'and', 'or', 'not'"
        ) from None

    def selected(text: str) -> bool:
        def contains(word: str, /, **_: str | int | bool | None) -> bool:
            return word.lower() in text.lower()

        return compiled.evaluate(contains)

    return selected


def meant(expression: str, names: Iterable[str]) -> str:
    """` (did you mean ...?)` for the words of -k that are part of no name; "" where nothing is like them."""
    known = list(names)
    words = [word for word in re.findall(r"[^\s()]+", expression) if word not in ("and", "or", "not")]
    return "".join(closest(word, known) for word in words if not any(word.lower() in name.lower() for name in known))
