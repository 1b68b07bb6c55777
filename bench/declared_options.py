"""An option of pytest as it is declared, once: its name, where it means something, and what argparse is told of it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from itertools import takewhile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pytest


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
