"""Groups values by keys; keys and values keep the order in which they come."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Returns the values of each key."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def positions_by_key(keys: Iterable[Key]) -> dict[Key, list[int]]:
    """Returns the positions of the rows with each key, such as a signature."""
    return grouped((key, position) for position, key in enumerate(keys))
