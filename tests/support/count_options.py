"""Counts the options that OpAtlas declares: `python tests/support/count_options.py`.

An option of pytest counts once, whichever sessions take it, and an option of a command once for each command.
Aliases, hidden options and --help do not count.
"""

from __future__ import annotations

import argparse
from typing import Any

from opatlas.plugins import options, theory

from opatlas.cli.main import parser as command_parser
from opatlas.collectives import options as collectives
from opatlas.engine import expert_parallel


class _PytestOptions:
    """Records the options that are added as pytest's parser would take them."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def getgroup(self, *_: str) -> _PytestOptions:
        return self

    def addoption(self, name: str, *_: str, **how: Any) -> None:
        if how.get("help") is not argparse.SUPPRESS:
            self.names.append(name)


def options_of_pytest() -> list[str]:
    """Returns the options that OpAtlas adds to pytest."""
    recorded: Any = _PytestOptions()
    for add_options in (
        options.pytest_addoption,
        theory.pytest_addoption,
        expert_parallel.add_options,
        collectives.add_options,
    ):
        add_options(recorded)
    names: list[str] = recorded.names
    return names


def options_of_commands() -> dict[str, list[str]]:
    """Returns the options of each command that does not run pytest."""
    (subparsers,) = (a for a in command_parser()._actions if isinstance(a, argparse._SubParsersAction))
    return {
        name: [
            action.option_strings[0]
            for action in parser._actions
            if action.option_strings and action.dest != "help" and action.help is not argparse.SUPPRESS
        ]
        for name, parser in subparsers.choices.items()
    }


if __name__ == "__main__":
    of_pytest, of_commands = options_of_pytest(), options_of_commands()
    print(f"pytest: {len(of_pytest)}: {' '.join(of_pytest)}")
    for command, names in of_commands.items():
        print(f"opatlas {command}: {len(names)}: {' '.join(names)}")
    print(f"in all: {len(of_pytest) + sum(map(len, of_commands.values()))}")
