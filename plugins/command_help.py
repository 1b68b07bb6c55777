"""The help of the commands that run pytest: OpAtlas' own options, without those of pytest and other plugins."""

from __future__ import annotations

import argparse
from typing import Any

from opatlas.options import Scope

from . import options, theory

#: The kind of session that each command starts; options without an effect in it are not shown.
SCOPES = {"bench": Scope.ROWS, "collectives": Scope.COLLECTIVES, "shapes": Scope.THEORY}
_SCOPE_OF = {option.name: option.scope for option in (*options.OPTIONS, *theory.OPTIONS)}


class _OptionGroups:
    """Takes options as pytest's parser does, and keeps those that a command can use."""

    def __init__(self, parser: argparse.ArgumentParser, scope: Scope) -> None:
        self._parser = parser
        self._scope = scope

    def getgroup(self, _name: str, description: str) -> _OptionGroup:
        return _OptionGroup(self._parser.add_argument_group(description), self._scope)


class _OptionGroup:
    def __init__(self, group: Any, scope: Scope) -> None:
        self._group = group
        self._scope = scope

    def addoption(self, name: str, *aliases: str, **how: Any) -> None:
        if _SCOPE_OF.get(name, Scope.ANY) & self._scope:
            self._group.add_argument(name, *aliases, **how)


def help_of(command: str, about: str) -> str:
    """Returns the help of `opatlas bench`, `opatlas collectives` or `opatlas shapes`."""
    parser = argparse.ArgumentParser(
        prog=f"opatlas {command}",
        usage=f"opatlas {command} [OPTION ...] [OPTION OF PYTEST ...]",
        description=f"{about[0].upper()}{about[1:]}.",
        epilog="pytest's own options hold, too, such as -k, -x, -v, --lf and --junitxml: `pytest --help` has them all.",
        add_help=False,
    )
    groups: Any = _OptionGroups(parser, SCOPES[command])
    for module in (options, theory):
        module.pytest_addoption(groups)
    return parser.format_help()
