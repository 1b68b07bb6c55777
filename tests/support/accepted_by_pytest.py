"""Whether pytest takes command lines: lists of arguments in (JSON, stdin), the objection to each out (stdout).

pytest starts with the conftest.py files of the folders that a list names, once for lists that name the same, as far as
the options are read; nothing is collected. In a process of its own, because those files are modules of one name.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Generator
from functools import cache
from pathlib import Path

import pytest


class OptionsAreRead(Exception):
    """Nothing was wrong with them."""


class StopThere:
    """A plugin that ends a session when its options have been read, and keeps the parser that has all of them."""

    parser: pytest.Parser

    def pytest_addoption(self, parser: pytest.Parser) -> None:
        self.parser = parser

    @pytest.hookimpl(wrapper=True)
    def pytest_cmdline_parse(self) -> Generator[None, object, object]:
        yield
        raise OptionsAreRead


@cache
def parser_of(start: tuple[str, ...]) -> pytest.Parser:
    """The options of a session that begins with these words."""
    plugin = StopThere()
    with contextlib.suppress(OptionsAreRead), contextlib.redirect_stdout(io.StringIO()):
        pytest.main([*start], plugins=[plugin])
    return plugin.parser


def refusal(arguments: list[str]) -> str:
    """The objection of pytest to them; "" where it takes them."""
    arguments = [word for word in arguments if word not in ("-h", "--help")]
    named = tuple(word for word in arguments if Path(word.partition("::")[0]).exists())
    decide = any(word in ("-p", "-c") for word in arguments)
    try:
        parser_of(tuple(arguments) if decide else named).parse(arguments)
    except pytest.UsageError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        return next((line for line in lines if "error:" in line), str(error).strip())
    return ""


if __name__ == "__main__":
    json.dump([refusal(arguments) for arguments in json.load(sys.stdin)], sys.stdout)
