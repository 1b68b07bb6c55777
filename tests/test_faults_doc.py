"""docs/faults.md names, for each fault and each promise, tests that exist; so does the page of acceptance sessions."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "faults.md").read_text(encoding="utf-8")
_NODE = re.compile(r"`([\w/]+\.py)((?:::\w+)+)`")
_SESSION = re.compile(r"`acceptance/([\w-]+)`")


def rows() -> list[list[str]]:
    """The cells of all tables of faults and promises."""
    lines = [line for line in PAGE.splitlines() if re.match(r"\| (?!fault \||promise \||---)", line)]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def defined(path: Path) -> set[str]:
    """Functions and methods of a file as pytest names them: `::test_a`, `::TestB::test_c`."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(f"::{node.name}")
        elif isinstance(node, ast.ClassDef):
            found |= {f"::{node.name}::{method.name}" for method in node.body if isinstance(method, ast.FunctionDef)}
    return found


def test_each_fault_and_each_promise_names_a_test() -> None:
    assert len(rows()) > 25
    for what, *_, proof in rows():
        assert _NODE.search(proof) or _SESSION.search(proof), what


@pytest.mark.parametrize(
    "page", [PAGE, (TESTS / "acceptance" / "README.md").read_text(encoding="utf-8")], ids=["faults", "acceptance"]
)
def test_every_test_that_a_page_names_exists(page: str) -> None:
    named = _NODE.findall(page)
    assert named
    missing = [file + name for file, name in named if not (TESTS / file).is_file() or name not in defined(TESTS / file)]
    missing += [name for name in _SESSION.findall(page) if not (TESTS / "acceptance" / name / "session.yaml").is_file()]
    assert not missing


def test_every_file_of_chaos_is_named() -> None:
    """Each tested fault is on the page."""
    named = {file for file, _ in _NODE.findall(PAGE)}
    assert {f"chaos/{path.name}" for path in (TESTS / "chaos").glob("test_*.py")} <= named
