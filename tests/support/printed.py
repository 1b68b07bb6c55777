"""The numbers in the output of a command, whatever its words."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")
_LINE = re.compile(r"^ *(\S.*?) {2,}(\S.*)$", re.MULTILINE)


def numbers_in(text: str) -> tuple[float, ...]:
    """Returns the numbers of a text in their order: `3 of 1,024 rows` has 3 and 1024."""
    return tuple(float(found.replace(",", "")) for found in _NUMBER.findall(text))


def numbers_by_line(text: str) -> dict[str, tuple[float, ...]]:
    """Returns the numbers of each line of a summary by the line's first words, which end with two blanks."""
    return {name: numbers_in(rest) for name, rest in _LINE.findall(text)}
