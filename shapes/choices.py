"""Strategies that draw nothing but booleans, so that a seed always gives the same values.

hypothesis' own `integers`, `sampled_from` and `one_of` mix in constants that it finds in the source
of whatever modules happen to be loaded: the same seed gives other rows in another process. Booleans
are drawn from the seed alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")

#: Bits beyond those that count the values: what is left of the modulo's preference for the first
#: values is then below a percent.
_SPARE_BITS = 7


def choice(values: Sequence[T]) -> SearchStrategy[T]:
    """One of `values`, each as likely as another; shrinks to the first."""
    if not values:
        raise ValueError("nothing to choose from")
    return whole_number(0, len(values) - 1).map(lambda i: values[i])


def whole_number(low: int, high: int) -> SearchStrategy[int]:
    """A whole number in low ... high, each as likely as another; shrinks to `low`."""
    if low > high:
        raise ValueError(f"no whole number in {low} ... {high}")
    count = high - low + 1
    if count == 1:
        return st.just(low)
    bits = (count - 1).bit_length() + _SPARE_BITS
    return st.tuples(*[st.booleans()] * bits).map(lambda drawn: low + _number(drawn) % count)


def _number(bits: Sequence[bool]) -> int:
    number = 0
    for bit in bits:
        number = 2 * number + bit
    return number
