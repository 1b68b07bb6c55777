"""The preparation of public generated kernels: a fallback becomes an error."""

from __future__ import annotations

import pytest

from tests.benchmarks.public_kernels import without_fallbacks

SOURCE = """\
def kernel(x):
    try:
        if x > 1:
            raise ValueError("no kernel for this")
        return "kernel"
    except Exception as error:  # größer
        print(error)
        return "torch"


def other(x):
    try: return 1 / x
    except ZeroDivisionError: return "torch"


def strict(x):
    try:
        return 1 / x
    except ZeroDivisionError:
        raise OverflowError from None
"""


@pytest.mark.parametrize(
    ("name", "good", "bad", "error"),
    [("kernel", 0, 2, ValueError), ("other", 1, 0, ZeroDivisionError), ("strict", 1, 0, OverflowError)],
)
def test_what_a_handler_swallowed_is_raised(name: str, good: int, bad: int, error: type[Exception]) -> None:
    functions: dict[str, object] = {}
    exec(without_fallbacks(SOURCE), functions)
    function = functions[name]
    assert callable(function)
    assert function(good) != "torch"
    with pytest.raises(error):
        function(bad)


def test_a_text_that_is_not_python_stays_as_it_is() -> None:
    assert without_fallbacks("def f(:\n") == "def f(:\n"
