"""The help of the commands that run pytest: OpAtlas' own options, without the options of pytest and other plugins."""

from __future__ import annotations

import argparse
from typing import Any

from opatlas.options import Scope

from . import options, theory

#: The kinds of session that each command starts; options without an effect in them are not shown.
SCOPES = {"bench": Scope.ROWS, "collectives": Scope.COLLECTIVES, "shapes": Scope.THEORY}
_STRICT_ROWS = " --strict, an option of pytest, also fails rows that an earlier session ran and failed to measure"
#: What OpAtlas adds to pytest's --strict, by command.
_STRICT = {
    "bench": f"{_STRICT_ROWS}.",
    "collectives": f"{_STRICT_ROWS}, and refuses sizes of groups that the machine or the grid cannot hold.",
}
_SCOPE_BY_OPTION = {option.name: option.scope for option in (*options.OPTIONS, *theory.OPTIONS)}


class _HelpParser(argparse.ArgumentParser):
    """Takes options as pytest's parser does, and keeps the options with an effect in some kinds of session."""

    def __init__(self, scope: Scope, **more: Any) -> None:
        super().__init__(add_help=False, **more)
        self._scope = scope

    def getgroup(self, _: str, description: str) -> Any:
        group: Any = self.add_argument_group(description)
        group.addoption = lambda name, *aliases, **arguments: (
            group.add_argument(name, *aliases, **arguments)
            if _SCOPE_BY_OPTION.get(name, Scope.ANY) & self._scope
            else None
        )
        return group


def help_of(command: str, about: str) -> str:
    """Returns the help of `opatlas bench`, `opatlas collectives` or `opatlas shapes`."""
    parser: Any = _HelpParser(
        SCOPES[command],
        prog=f"opatlas {command}",
        usage=f"opatlas {command} [OPTION ...] [OPTION OF PYTEST ...]",
        description=f"{about[0].upper()}{about[1:]}.",
        epilog=f"pytest's own options hold, too, such as -k, -x, -v, --lf and --junitxml: `pytest --help` lists them."
        f"{_STRICT.get(command, '')}",
    )
    for module in (options, theory):
        module.pytest_addoption(parser)
    text: str = parser.format_help()
    return text
