"""Pages in Chinese keep step with the English ones: blocks, headings with their anchors, rows of tables."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from doc_commands import ROOT, fenced_blocks
from test_docs_links import IDENTIFIERS, anchors_in_order, text_of

CHINESE = sorted((ROOT / "docs" / "zh").glob("*.md"))


def blocks(page: Path) -> list[tuple[str, list[str]]]:
    """Language and lines of each fenced block; comments may be in the language of the page."""
    shown = fenced_blocks(page.read_text(encoding="utf-8"))
    return [(language, [re.sub(r"\s*#.*", "", line) for line in lines]) for _, language, lines in shown]


def rows(page: Path) -> list[int]:
    """Cells of each row of each table, in order."""
    return [len(re.findall(r"(?<!\\)\|", line)) - 1 for line in text_of(page).splitlines() if line.startswith("|")]


def english_of(page: Path) -> Path:
    """Returns the page of the same name in docs or docs/tutorials."""
    (english,) = (each for each in (ROOT / "docs", ROOT / "docs" / "tutorials") if (each / page.name).exists())
    return english / page.name


def link_to(page: Path, from_page: Path) -> str:
    return f"]({Path(os.path.relpath(page, from_page.parent)).as_posix()})"


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.stem)
def test_a_page_shows_the_same_blocks_in_both_languages(page: Path) -> None:
    assert blocks(page) == blocks(english_of(page))


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.stem)
def test_a_page_has_the_same_headings_and_tables_in_both_languages(page: Path) -> None:
    """Each heading below the title ends with `<a id="..."></a>`, so that links to the English one lead there, too."""
    english = english_of(page)
    assert IDENTIFIERS.findall(text_of(page)) == anchors_in_order(english)[1:]
    assert rows(page) == rows(english)
    levels = [re.findall(r"^#+(?= )", text_of(each), flags=re.MULTILINE) for each in (page, english)]
    assert levels[0] == levels[1]


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: page.stem)
def test_a_page_and_its_translation_link_to_each_other(page: Path) -> None:
    english = english_of(page)
    assert link_to(english, page) in text_of(page)
    assert link_to(page, english) in text_of(english)
