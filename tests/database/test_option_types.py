"""Numbers of the command line, and what becomes of other text."""

from __future__ import annotations

import argparse

import pytest

from database.option_types import at_least, positive


@pytest.mark.parametrize(("read", "text", "number"), [(at_least(0), "0", 0), (at_least(2), "17", 17)])
def test_whole_numbers(read, text: str, number: int) -> None:
    assert read(text) == number


@pytest.mark.parametrize("text", ["1", "-3", "2.0", "two", ""])
def test_what_is_none_or_too_small_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}': give a whole number from 2 on"):
        at_least(2)(text)


@pytest.mark.parametrize(("text", "number"), [("0.5", 0.5), ("1e3", 1000.0)])
def test_real_numbers(text: str, number: float) -> None:
    assert positive(text) == number


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", ""])
def test_no_time_is_endless(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}': give a number above 0"):
        positive(text)
