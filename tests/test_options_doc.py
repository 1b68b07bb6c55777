"""The tables of docs/bench.md against the options that OpAtlas adds to pytest."""

from __future__ import annotations

import re
from pathlib import Path

from declared_options import pytest_parser, shown

PAGE = (Path(__file__).parents[1] / "docs" / "bench.md").read_text(encoding="utf-8")
#: The option and the default of each line.
LINES = dict(re.findall(r"^\| `(--[a-z-]+)` \| .* \| ([^|]+) \|$", PAGE, re.MULTILINE))
#: Of each option its help, with the default filled in.
HELPS = {action.option_strings[-1]: (action.help or "") % vars(action) for action in shown(pytest_parser())}


def numbers(text: str) -> set[str]:
    return set(re.findall(r"\d+", text))


def test_the_page_has_a_line_for_each_option() -> None:
    assert LINES.keys() == HELPS.keys()


def test_defaults_on_the_page_are_those_of_the_help() -> None:
    defaults = {option: numbers(text.partition("(default: ")[2]) for option, text in HELPS.items()}
    assert [option for option, text in LINES.items() if not numbers(text) <= defaults[option]] == []
