"""The options that OpAtlas declares. `python tests/support/declared_options.py` counts them.

An option of pytest counts once, whichever sessions take it, and an option of a command once for each command.
Aliases, hidden options, --help and --version do not count.
"""

from __future__ import annotations

import argparse
from functools import cache
from typing import Any

from opatlas.plugins import options, theory

from opatlas.cli.main import COMMANDS, parser_of


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
    for module in (options, theory):
        module.pytest_addoption(recorded)
    parser: argparse.ArgumentParser = recorded.parser
    return parser


@cache
def command_parsers() -> dict[str, argparse.ArgumentParser]:
    """Returns the parsers of the commands that do not run pytest."""
    return {name: parser_of(command.module, f"opatlas {name}") for name, command in COMMANDS.items() if command.module}


def shown(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Returns the options that a help text shows."""
    return [
        action
        for action in parser._actions
        if action.option_strings and action.help is not argparse.SUPPRESS and action.dest not in ("help", "version")
    ]


def names(parser: argparse.ArgumentParser) -> set[str]:
    """Returns the options that a help text shows, by all their names."""
    return {name for action in shown(parser) for name in action.option_strings}


def count() -> int:
    """Returns how many options OpAtlas has."""
    return sum(len(shown(parser)) for parser in (pytest_parser(), *command_parsers().values()))


if __name__ == "__main__":
    for each in (pytest_parser(), *command_parsers().values()):
        told = [action.option_strings[0] for action in shown(each)]
        print(f"{each.prog}: {len(told)}: {' '.join(told)}")
    print(f"in all: {count()}")
