"""Whether pytest takes command lines: lists of arguments in (JSON, stdin), the objection to each out (stdout).

Each goes through pytest's own start with the conftest.py files of the folders that it names, as far as the options
are read; nothing is collected. In a process of its own, because those files are modules of one name.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from collections.abc import Generator

import pytest


class OptionsAreRead(Exception):
    """Nothing was wrong with them."""


class StopThere:
    """A plugin that ends a session when its options have been read."""

    @pytest.hookimpl(wrapper=True)
    def pytest_cmdline_parse(self) -> Generator[None, object, object]:
        yield
        raise OptionsAreRead


def refusal(arguments: list[str]) -> str:
    """The objection of pytest to them; "" where it takes them."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            pytest.main(arguments, plugins=[StopThere()])
    except OptionsAreRead:
        return ""
    lines = [line.strip() for line in said.getvalue().splitlines()]
    return next((line for line in lines if "error:" in line), said.getvalue().strip())


if __name__ == "__main__":
    json.dump([refusal(arguments) for arguments in json.load(sys.stdin)], sys.stdout)
