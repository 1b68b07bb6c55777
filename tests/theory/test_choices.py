"""Numbers that depend on the seed alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opatlas.shapes.strategies import whole_number
from tests_of_shapes import drawn


@given(st.integers(-1000, 1000), st.integers(0, 10**7), st.data())
def test_whole_numbers_lie_within_their_bounds(low: int, span: int, data: st.DataObject) -> None:
    assert low <= data.draw(whole_number(low, low + span)) <= low + span


def test_numbers_of_every_part_of_the_range_are_drawn() -> None:
    values = drawn(whole_number(0, 10**6 - 1), 1000)
    tenths = [sum(value // 10**5 == tenth for value in values) for tenth in range(10)]
    assert min(tenths) > 50


def test_a_small_range_is_drawn_out() -> None:
    assert sorted(drawn(whole_number(3, 12), 1000)) == list(range(3, 13))


def test_an_empty_range_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"3 \.\.\. 2"):
        whole_number(3, 2)
