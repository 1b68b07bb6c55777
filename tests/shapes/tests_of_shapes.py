"""What the tests of theory rows share."""

from __future__ import annotations

from typing import TypeVar

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")


def drawn(strategy: SearchStrategy[T], count: int) -> list[T]:
    """Draws of a strategy, duplicates included."""
    values: list[T] = []

    @seed(0)
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def collect(value: T) -> None:
        values.append(value)

    collect()
    return values
