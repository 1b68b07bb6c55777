"""The targets of links on the pages exist: other pages, their headings, files of the checkout, pictures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from doc_commands import DOCS, PAGES, ROOT

_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
#: Anchors of a heading in addition to its own: those of a Chinese page are the English ones.
IDENTIFIERS = re.compile(r'<a id="([\w-]+)"></a>')
#: A file of the checkout, as sentences name it: `opatlas/run/inputs/replay_row.py`, `tests/support/`.
_FILE = re.compile(r"`((?:opatlas|bench|database|plugins|shapes|tests|docs)/[\w./-]*)`|(?<![\w/`])(tests/[\w/]+\.py)\b")


def text_of(page: Path) -> str:
    """Without code blocks."""
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors_in_order(page: Path) -> list[str]:
    """GitHub's anchors of a page's headings, the title first."""
    headings = re.findall(r"^#+ (.+)$", IDENTIFIERS.sub("", text_of(page)), flags=re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings]


def anchors(page: Path) -> set[str]:
    return {*anchors_in_order(page), *IDENTIFIERS.findall(text_of(page))}


def dead_links(page: Path) -> list[str]:
    dead = []
    for link in _LINK.findall(text_of(page)):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    return dead


def missing_files(page: Path) -> list[str]:
    named = [quoted or plain for quoted, plain in _FILE.findall(text_of(page))]
    # A database of another machine, or of the example, need not be there.
    return [name for name in named if not name.startswith("database/data/") and not (ROOT / name).exists()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    assert missing_files(page) == []


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_page_is_found_from_another(page: Path) -> None:
    links = {
        (other.parent / link.partition("#")[0]).resolve() for other in PAGES for link in _LINK.findall(text_of(other))
    }
    assert page.resolve() in links


def test_dead_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A heading, `coded`\n[a](#a-heading-coded) [b](#another) [c](gone.md) [d](page.md#a-heading-coded)\n"
        "`opatlas/run/replay.py` `bench/gone.py` tests/gone.py `database/data/X/y.csv`\n```\n[e](f.md) `bench/none.py`\n```\n"  # noqa: E501
    )
    assert dead_links(page) == ["#another", "gone.md"]
    assert missing_files(page) == ["bench/gone.py", "tests/gone.py"]
