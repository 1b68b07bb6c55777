"""Numbers of the command line, for `type=` of an option. Each raises argparse.ArgumentTypeError for other text."""

from __future__ import annotations

import argparse


def positive_int(text: str) -> int:
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r}: give a whole number above 0")
    return int(text)


def positive_float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: give a number above 0")
    return number
