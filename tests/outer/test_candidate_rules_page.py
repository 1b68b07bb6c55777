"""docs/candidates.md has every rule, refusal and class."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.outer.judging.judgement import ErrorClass
from opatlas.outer.judging.rules import RULES

PAGE = (Path(__file__).parents[2] / "docs" / "candidates.md").read_text("utf-8").splitlines()


def test_the_table_of_rules_is_that_of_the_code() -> None:
    cells = [[cell.strip() for cell in line.strip("| ").split("|")] for line in PAGE if line.startswith("| `")]
    on_page = [tuple(row[:4]) for row in cells if len(row) > 3 and row[1] in {"note", *map(str, ErrorClass)}]
    assert on_page == [(f"`{rule.name}`", str(rule.error_class or "note"), rule.source, rule.finds) for rule in RULES]


@pytest.mark.parametrize("error_class", list(ErrorClass))
def test_each_class_has_a_line(error_class: ErrorClass) -> None:
    assert any(line.startswith(f"| `{error_class}` | L") for line in PAGE)
