"""Choices that depend on the seed alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests_of_shapes import drawn

from shapes.choices import choice, whole_number


@given(st.integers(-1000, 1000), st.integers(0, 5000), st.data())
def test_whole_numbers_lie_within_their_bounds(low: int, span: int, data: st.DataObject) -> None:
    assert low <= data.draw(whole_number(low, low + span)) <= low + span


def test_every_value_is_drawn_about_as_often() -> None:
    values = drawn(whole_number(0, 9), 4000)
    assert all(0.5 < values.count(value) / (len(values) / 10) < 2.0 for value in range(10))


def test_a_single_value_needs_no_draw() -> None:
    assert set(drawn(whole_number(7, 7), 5)) == {7}


def test_an_empty_range_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no whole number in 3 \.\.\. 2"):
        whole_number(3, 2)


def test_nothing_to_choose_from_is_an_error() -> None:
    with pytest.raises(ValueError, match="nothing to choose from"):
        choice([])
