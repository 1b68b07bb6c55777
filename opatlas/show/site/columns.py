"""Columns of numbers and words in few characters, for JavaScript."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

#: Digits of a number.
_DIGITS = 6


def number_column(values: Iterable[Any]) -> dict[str, Any] | None:
    """Returns a column of numbers of 6 digits, null for a row without a number; None if no row has a number."""
    numbers = [_number(value) for value in values]
    return {"numbers": numbers} if any(number is not None for number in numbers) else None


def _number(value: Any) -> float | int | None:
    if value is None or value is pd.NA or isinstance(value, str):
        return None
    number = float(value)
    if not math.isfinite(number):
        return None
    if number.is_integer() and abs(number) < 2**53:
        return int(number)
    return float(f"{number:.{_DIGITS}g}")


def word_column(values: Sequence[str]) -> dict[str, Any] | None:
    """Returns a column of words, as codes where they repeat; None if all are empty."""
    codes = {word: code for code, word in enumerate(dict.fromkeys(values))}
    if not any(codes):
        return None
    if len(codes) * 2 > len(values):
        return {"words": list(values)}
    return {"codes": [codes[word] for word in values], "of": list(codes)}
