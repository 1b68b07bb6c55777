"""Numbers and names of the command line, for `type=` of an option: each raises argparse.ArgumentTypeError otherwise."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Collection
from typing import TypeVar

from database.closest import closest
from database.numbers import real as real_number
from database.numbers import whole
from database.versions import Component

#: Version directories put an underscore between versions, so none may be in one.
_VERSION = re.compile(r"\d+(?:\.\d+)+(?:[.-]?[a-z]+[.-]?\d*)*(?:\+[a-z\d.-]+)?", re.ASCII | re.IGNORECASE)

T = TypeVar("T")


def at_least(least: int) -> Callable[[str], int]:
    """Whole numbers from `least` on."""

    def read(text: str) -> int:
        number = whole(text)
        if number is None or number < least:
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from {least} on")
        return number

    return read


def between(least: int, most: int) -> Callable[[str], int]:
    """Whole numbers from `least` to `most`."""

    def read(text: str) -> int:
        number = whole(text)
        if number is None or not least <= number <= most:
            raise argparse.ArgumentTypeError(f"{text!r}: give a whole number from {least} to {most}")
        return number

    return read


def version(component: Component) -> Callable[[str], str]:
    """Versions of a piece of software; `v0.18.0` and `vllm0.18.0`, as tags and version directories have it, too."""
    names = "|".join(map(re.escape, {component.field, component.name, component.name.replace("-", "_")}))
    prefix = re.compile(rf"(?:(?:{names})[-_=\s]*)?v?(?=\d)", re.IGNORECASE)

    def read(text: str) -> str:
        plain = prefix.sub("", text.strip(), count=1) if prefix.match(text.strip()) else text.strip()
        if not _VERSION.fullmatch(plain):
            raise argparse.ArgumentTypeError(
                f"{text!r}: give a version of {component.name}, such as {component.example}"
            )
        return plain

    return read


class Listed(argparse.Action):
    """For options of several values: `2,4` and `2 4` are the same. To be used with `nargs="+"` and `items_of`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        assert isinstance(values, list)
        setattr(namespace, self.dest, [value for part in values for value in part])


def items_of(read: Callable[[str], T]) -> Callable[[str], list[T]]:
    """What commas separate, each read by `read`. A path that stands behind such an option says so."""

    def read_all(text: str) -> list[T]:
        try:
            return [read(item.strip()) for item in text.split(",") if item.strip()] or [read(text)]
        except argparse.ArgumentTypeError as error:
            if "/" in text or text.partition("::")[0].endswith(".py"):
                raise argparse.ArgumentTypeError(f"{text!r}: name files and folders before this option") from None
            raise argparse.ArgumentTypeError(str(error)) from None

    return read_all


def share(text: str) -> float:
    """`5%` or `0.05`, as a number above 0; without the sign at most 1, for nobody can tell what `5` means."""
    digits = text.strip().removesuffix("%").rstrip()
    number = real_number(digits)
    is_percent = text.strip().endswith("%")
    if number is None or not 0 < number < math.inf or (number > 1 and not is_percent):
        raise argparse.ArgumentTypeError(f"{text!r}: give a share above 0, such as 5% or 0.05")
    return number / 100 if is_percent else number


def names(text: str) -> tuple[str, ...]:
    """One name, or several with commas between them."""
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: give a name, or several with commas")
    return found


def one_of(names: Collection[str]) -> Callable[[str], str]:
    """One of some names."""

    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r}{closest(text, names)}: give one of {', '.join(names)}")
        return text

    return read


def real(words: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    """Finite numbers that fit; `words` say which these are ("a number above 0")."""

    def read(text: str) -> float:
        number = real_number(text)
        if number is None or not (math.isfinite(number) and fits(number)):
            raise argparse.ArgumentTypeError(f"{text!r}: give {words}")
        return number

    return read


#: Seconds, for instance.
positive = real("a number above 0", lambda number: number > 0)
