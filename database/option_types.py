"""Numbers of the command line, for `type=` of an option. Each raises argparse.ArgumentTypeError for other text."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """Whole numbers from `least` on."""

    def read(text: str) -> int:
        if not (text.isdecimal() and int(text) >= least):
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from {least} on")
        return int(text)

    return read


def between(least: int, most: int) -> Callable[[str], int]:
    """Whole numbers from `least` to `most`."""

    def read(text: str) -> int:
        if not (text.isdecimal() and least <= int(text) <= most):
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from {least} to {most}")
        return int(text)

    return read


def real(words: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    """Finite numbers that fit; `words` say which these are ("a number above 0")."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not (math.isfinite(number) and fits(number)):
            raise argparse.ArgumentTypeError(f"{text!r}: give {words}")
        return number

    return read


#: Seconds, for instance.
positive = real("a number above 0", lambda number: number > 0)
