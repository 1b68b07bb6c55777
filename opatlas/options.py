"""Numbers and names of the command line, for `type=` of an option: each raises argparse.ArgumentTypeError otherwise."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from itertools import takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from opatlas.model.versions import Component
from opatlas.text import closest, whole
from opatlas.text import real as real_number

if TYPE_CHECKING:
    import pytest

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


class Scope(Flag):
    """What a session must be for an option to do something in it; where it is not, the option is refused."""

    ANY = 0
    #: It replays rows, which `pytest shapes/` does not.
    REPLAYS = auto()
    #: It runs the rows that it replays, which --prof-path does not.
    RUNNING = auto()
    #: Its rows are those of kernels, and not messages.
    KERNELS = auto()
    #: It replays on NPUs.
    NPUS = auto()
    #: It finds its database by device and versions, and not by --database-path.
    FINDS_DATABASE = auto()
    #: It measures messages between devices.
    COLLECTIVES = auto()
    #: It adds theory rows.
    THEORY = auto()


@dataclass(frozen=True)
class Option:
    """An option of pytest.

    Attributes:
        name: as users write it, dashes included.
        scope: all that a session must be for it to do something.
        how: what argparse is told of it besides.
        aliases: other names, which mean the same.
    """

    name: str
    scope: Scope
    how: Mapping[str, Any]
    aliases: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names under which users write it."""
        return (self.name, *self.aliases)

    @property
    def dest(self) -> str:
        """What its value is called."""
        return str(self.how.get("dest", self.name.lstrip("-").replace("-", "_")))

    @property
    def default(self) -> object:
        """What it is where it is not given."""
        return self.how.get("default", False if self.how.get("action") == "store_true" else None)


def declare(name: str, scope: Scope, *, aliases: tuple[str, ...] = (), **how: Any) -> Option:
    """An option, written as for argparse, but for its scope: `declare("--seed", Scope.THEORY, type=int, default=0)`."""
    return Option(name, scope, how, aliases)


class _Moved(argparse.Action):
    """Refuses an option that has left, and names its successor."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        raise argparse.ArgumentError(self, f"this option has left: use {self.metavar}")


def moved(name: str, successor: str) -> Option:
    """Returns a hidden option that is refused wherever it is given, with its successor as the remedy."""
    how = {"action": _Moved, "nargs": "?", "metavar": successor, "default": argparse.SUPPRESS}
    return Option(name, Scope.ANY, {**how, "help": argparse.SUPPRESS})


def add_all(group: pytest.OptionGroup, options: Iterable[Option]) -> None:
    """Adds options to a group of the help."""
    for each in options:
        group.addoption(*each.names, **each.how)


def given(arguments: Iterable[str], options: Iterable[Option], scope: Scope) -> list[str]:
    """The options of any of some scopes that stand on a command line, by name.

    Args:
        arguments: of the command line alone; what pytest.ini or PYTEST_ADDOPTS adds holds for sessions of all kinds.
    """
    names = {argument.partition("=")[0] for argument in takewhile(lambda argument: argument != "--", arguments)}
    return [next(iter(written)) for each in options if each.scope & scope and (written := names & {*each.names})]


def reset(values: argparse.Namespace, options: Iterable[Option], scope: Scope) -> None:
    """Gives the options of any of some scopes their defaults again, as far as the session has them at all."""
    for each in options:
        if each.scope & scope and hasattr(values, each.dest):
            setattr(values, each.dest, each.default)


def changed(values: argparse.Namespace, options: Iterable[Option]) -> dict[str, object]:
    """The options that have other values than their defaults, wherever they were given."""
    current = {each.dest: (getattr(values, each.dest, each.default), each.default) for each in options}
    return {name: value for name, (value, default) in current.items() if value != default}
