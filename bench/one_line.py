"""One line of what a program printed, or of what an exception says."""

from __future__ import annotations


def first_line(text: str) -> str:
    """Of text that may be empty or begin with empty lines."""
    return _lines(text)[0]


def last_line(text: str) -> str:
    """As `first_line`: programs that fail say last why."""
    return _lines(text)[-1]


def in_a_line(error: BaseException) -> str:
    """Its type, and the first line of its message."""
    return f"{type(error).__name__}: {first_line(str(error))}"


def _lines(text: str) -> list[str]:
    return text.strip().splitlines() or ["no message"]
