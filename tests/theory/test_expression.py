"""Arithmetic of the catalog, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opatlas.theory.patterns import ExpressionError, parse_expression


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        (7, 7),
        ("m * k + 2", 38),
        ("-m + 20", 8),
        ("k // 2 - k % 2", 0),
        ("min(m, k) + max(m, k)", 15),
        ("align(k, 8)", 8),
        ("align(16, 8)", 16),
        ("(m + k) * 2", 30),
        # A division by 0 gives 0, and so no size that a tensor may have.
        ("m // (k - k)", 0),
        ("m % (k - k)", 0),
        ("align(m, k - k)", 0),
        ("m >= 12", True),
        ("m < k", False),
        ("1 < k < m", True),
        ("m == 12 and k != 3", False),
    ],
)
def test_values_and_conditions(text: str | int, value: int | bool) -> None:
    assert parse_expression(text).value({"m": 12, "k": 3}) == value


@given(st.lists(st.integers(1, 10**5), min_size=1, max_size=20), st.integers(1, 10**5))
def test_many_at_once_equal_each_alone(values: list[int], k: int) -> None:
    for text in (
        "m * k",
        "align(m, k)",
        "min(m, k) - max(m, k)",
        "m // k + m % k",
        "m % (k - k)",
        "m >= k and m != 7",
        "1 < m < k",
    ):
        expression = parse_expression(text)
        at_once = expression.value({"m": np.array(values), "k": k})
        assert at_once.tolist() == [expression.value({"m": m, "k": k}) for m in values]


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "m.real",
        "m[0]",
        "(lambda: 1)()",
        "[m for m in (1, 2)]",
        "2 ** 99999999",
        "m << 99",
        "'a' * 9",
        "1.5",
        "True",
        "min(m)",
        "min(m, k, 1)",
        "abs(m)",
        "align(value=m, multiple=2)",
        "m if k else 1",
        "m or k",
        "m / k",
        "9999999999999999999",
        "f'{m}'",
        "(m := 3)",
        "m in (1, 2)",
        "m +",
        "",
        "m; k",
        "import os",
        "m" * 300,
        "m // 0",
        "k % 0",
    ],
)
def test_other_text_than_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        parse_expression(text)
