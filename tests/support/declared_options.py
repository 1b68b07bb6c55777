"""The options that OpAtlas declares. `python tests/support/declared_options.py` counts them.

An option of pytest counts once, whichever sessions take it; so do --json and --format, which all commands take. Any
other option of a command counts once for each command. Aliases, hidden options, --help and --version do not count.
"""

from __future__ import annotations

import argparse
from functools import cache
from typing import Any

from cyclopts import App
from opatlas.plugins import options

from opatlas.cli.app import make_app
from opatlas.cli.main import all_commands


class _PytestParser:
    """Takes options as pytest's parser does, and adds them to a parser of argparse."""

    def __init__(self) -> None:
        self.parser = argparse.ArgumentParser(prog="pytest", add_help=False)
        self._groups: dict[str, Any] = {}

    def getgroup(self, name: str, description: str) -> Any:
        if name not in self._groups:
            group: Any = self.parser.add_argument_group(name, description)
            group.addoption = group.add_argument
            self._groups[name] = group
        return self._groups[name]


@cache
def pytest_parser() -> argparse.ArgumentParser:
    """Returns a parser of the options that OpAtlas adds to pytest."""
    recorded: Any = _PytestParser()
    options.pytest_addoption(recorded)
    parser: argparse.ArgumentParser = recorded.parser
    return parser


@cache
def command_options() -> dict[str, dict[str, str]]:
    """Returns the options of the commands that do not run pytest, with their help, by command.

    The options of all commands have the name "".
    """
    found = {"": _options(make_app(all_commands()).meta)}
    return found | {
        name: _options(make_app(all_commands(), name)[name])
        for name, command in all_commands().items()
        if command.function
    }


def _options(app: App) -> dict[str, str]:
    arguments = app.assemble_argument_collection(parse_docstring=True)
    return {each.name: each.parameter.help or "" for each in arguments if each.show and each.name.startswith("--")}


def shown(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Returns the options that a help text shows."""
    return [
        action
        for action in parser._actions
        if action.option_strings and action.help is not argparse.SUPPRESS and action.dest not in ("help", "version")
    ]


def count() -> int:
    """Returns how many options OpAtlas has."""
    return len(shown(pytest_parser())) + sum(map(len, command_options().values()))


if __name__ == "__main__":
    of_pytest = [action.option_strings[0] for action in shown(pytest_parser())]
    print(f"pytest: {len(of_pytest)}: {' '.join(of_pytest)}")
    for name, known in command_options().items():
        print(f"opatlas {name or 'COMMAND'}: {len(known)}: {' '.join(known)}")
    print(f"in all: {count()}")
