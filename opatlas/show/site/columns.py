"""Columns of numbers and words in few characters, for JavaScript."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
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


def columns_of(
    columns: Mapping[str, Sequence[Any]] | pd.DataFrame, words: Collection[str] | None = None
) -> dict[str, Any]:
    """Returns columns of equal length for JavaScript, without empty ones.

    Args:
        words: the columns of words; None: those in which a cell is a text.
    """
    found: dict[str, Any] = {}
    size = 0
    for name, values in columns.items():
        cells = list(values)
        size = len(cells)
        is_words = any(isinstance(cell, str) for cell in cells) if words is None else name in words
        column = word_column([_word(cell) for cell in cells]) if is_words else number_column(cells)
        if column is not None:
            found[str(name)] = column
    return {"rows": size, "columns": found}


def _word(cell: Any) -> str:
    return "" if cell is None or cell is pd.NA or cell != cell else str(cell)
