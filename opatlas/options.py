"""Options of the command line: readers of values, and the sessions that take an option.

A reader of values, for `type=` of an option, raises argparse.ArgumentTypeError for any other text.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from opatlas.row.versions import CANN, TORCH, VLLM, Versions, versions_option
from opatlas.text import parse_real, parse_whole, suggest

if TYPE_CHECKING:
    import pytest

#: Version directories put an underscore between versions, so a version contains none.
_VERSION = re.compile(r"\d+(?:\.\d+)+(?:[.-]?[a-z]+[.-]?\d*)*(?:\+[a-z\d.-]+)?", re.ASCII | re.IGNORECASE)
_NAMES_A_DATABASE = (VLLM, TORCH, CANN)

T = TypeVar("T")


def at_least(least: int) -> Callable[[str], int]:
    """Returns a reader of whole numbers from `least` on."""
    return _number(parse_whole, lambda number: number >= least, f"a whole number from {least} on")


def between(least: int, most: int) -> Callable[[str], int]:
    """Returns a reader of whole numbers from `least` to `most`."""
    return _number(parse_whole, lambda number: least <= number <= most, f"a whole number from {least} to {most}")


def positive(text: str) -> float:
    """Reads a finite number above 0, such as seconds."""
    return _number(parse_real, lambda number: 0 < number < math.inf, "a number above 0")(text)


def percent(text: str) -> float:
    """Reads a percentage from 0 on, with or without its sign."""
    return _number(_parse_share, lambda share: 0 <= share < math.inf, "a percentage from 0 on, such as 5%")(text)


def _parse_share(text: str) -> float | None:
    return parse_real(text.strip().removesuffix("%").rstrip())


def _number(parse: Callable[[str], T | None], fits: Callable[[T], bool], wanted: str) -> Callable[[str], T]:
    def read(text: str) -> T:
        number = parse(text)
        if number is None or not fits(number):
            raise argparse.ArgumentTypeError(f"{text!r}: give {wanted}")
        return number

    return read


def names(text: str) -> tuple[str, ...]:
    """Reads one name, or several names with commas between them."""
    found = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: give a name, or several with commas")
    return found


def one_of(names: Collection[str]) -> Callable[[str], str]:
    """Returns a reader of one of the names."""

    def read(text: str) -> str:
        if text not in names:
            raise argparse.ArgumentTypeError(f"{text!r}{suggest(text, names)}: give one of {', '.join(names)}")
        return text

    return read


class ListAction(argparse.Action):
    """Takes several values: `2,4` and `2 4` mean the same. Use with `nargs="+"` and `items_of`."""

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
    """Returns a reader of values with commas between them, whose error for a path says to name paths first."""

    def read_all(text: str) -> list[T]:
        try:
            return [read(item.strip()) for item in text.split(",") if item.strip()] or [read(text)]
        except argparse.ArgumentTypeError as error:
            if "/" in text or text.partition("::")[0].endswith(".py"):
                raise argparse.ArgumentTypeError(f"{text!r}: name files and folders before this option") from None
            raise argparse.ArgumentTypeError(str(error)) from None

    return read_all


def versions(text: str) -> Versions:
    """Reads the versions that name a database: `vllm=0.18.0,torch=2.9.0,cann=8.5`, in any order, or some of them."""
    known = {name.lower(): each for each in _NAMES_A_DATABASE for name in (each.field, each.name)}
    found: dict[str, str] = {}
    for item in filter(None, map(str.strip, text.split(","))):
        name, _, version = (word.strip() for word in item.partition("="))
        component, version = known.get(name.lower().replace("_", "-")), version.removeprefix("v")
        if component is None:
            example = versions_option({each: each.example for each in _NAMES_A_DATABASE})
            raise argparse.ArgumentTypeError(f"{item!r}: give versions as in {example}")
        if not _VERSION.fullmatch(version):
            example = f"{component.field}={component.example}"
            raise argparse.ArgumentTypeError(f"{item!r}: give a version of {component.name}, as in {example}")
        if component.field in found:
            raise argparse.ArgumentTypeError(f"{text!r}: give one version of {component.name}")
        found[component.field] = version
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: give a version, such as {VLLM.field}={VLLM.example}")
    return Versions(**found)


def is_disabled(option: argparse.Namespace) -> bool:
    """Returns whether rows are called once and checked only: pytest-benchmark's --benchmark-disable."""
    return getattr(option, "benchmark_disable", False) and not getattr(option, "benchmark_enable", False)


def read_only_by(option: argparse.Namespace) -> str:
    """Returns the option by which a session writes nothing; "" if it writes."""
    skips = getattr(option, "benchmark_skip", False)
    by = {"--read-only": option.read_only, "--benchmark-skip": skips, "--benchmark-disable": is_disabled(option)}
    return next((name for name, given in by.items() if given), "")


class Scope(Flag):
    """The kinds of session in which an option has an effect; in any other session the option is refused."""

    #: Rows of kernels run on a device: `pytest bench/`.
    KERNELS = auto()
    #: Durations of rows are looked up in profiles: `pytest bench/ --prof-path`.
    PROFILES = auto()
    #: Messages between devices are measured: `pytest bench/test_collectives.py`.
    COLLECTIVES = auto()
    #: Theory rows are added: `pytest shapes/`.
    THEORY = auto()

    ROWS = KERNELS | PROFILES
    RUNNING = KERNELS | COLLECTIVES
    REPLAYS = KERNELS | PROFILES | COLLECTIVES
    ANY = REPLAYS | THEORY


@dataclass(frozen=True)
class Option:
    """An option of pytest.

    Attributes:
        name: with its dashes.
        scope: the sessions in which it has an effect.
        argparse_arguments: further keyword arguments of argparse's `add_argument`.
    """

    name: str
    scope: Scope
    argparse_arguments: Mapping[str, Any]

    @property
    def dest(self) -> str:
        """The name of its value in pytest's namespace."""
        return str(self.argparse_arguments.get("dest", self.name.lstrip("-").replace("-", "_")))

    @property
    def default(self) -> object:
        """Its value where it is not given."""
        is_switch = self.argparse_arguments.get("action") == "store_true"
        return self.argparse_arguments.get("default", False if is_switch else None)


def declare(name: str, scope: Scope, **argparse_arguments: Any) -> Option:
    """Returns an option, declared as for argparse: `declare("--seed", Scope.THEORY, type=int, default=0)`."""
    return Option(name, scope, argparse_arguments)


def add_all(group: pytest.OptionGroup, options: Iterable[Option]) -> None:
    """Adds options to a group of pytest's help."""
    for each in options:
        group.addoption(each.name, **each.argparse_arguments)


def given(arguments: Iterable[str], options: Iterable[Option]) -> list[str]:
    """Returns the options on a command line, as written.

    Args:
        arguments: the words of the command line, without those that pytest.ini or PYTEST_ADDOPTS adds for sessions of
            all kinds.
    """
    written = {argument.partition("=")[0] for argument in takewhile(lambda argument: argument != "--", arguments)}
    return [each.name for each in options if each.name in written]


def reset(values: argparse.Namespace, options: Iterable[Option]) -> None:
    """Resets options to their defaults, if pytest knows the options."""
    for each in options:
        if hasattr(values, each.dest):
            setattr(values, each.dest, each.default)


def changed(values: argparse.Namespace, options: Iterable[Option]) -> dict[str, object]:
    """Returns the values that differ from their defaults, wherever they were given."""
    current = {each.dest: (getattr(values, each.dest, each.default), each.default) for each in options}
    return {name: value for name, (value, default) in current.items() if value != default}
