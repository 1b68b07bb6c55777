"""The Python blocks of the pages for modellers, run from top to bottom as one program of each page.

A ```text block right below a Python block is its output.
"""

from __future__ import annotations

import contextlib
import io
import re
from importlib.util import find_spec

import pytest
from doc_commands import ROOT

PAGES = ("docs/query.md", "docs/steps.md")
_BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES)
def test_the_output_of_python_blocks_matches_the_page(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = list(_BLOCK.finditer(text))
    assert blocks
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        if "import duckdb" in block[1] and find_spec("duckdb") is None:
            continue
        line = text.count("\n", 0, block.start()) + 2
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * (line - 1) + block[1], page, "exec"), names)
        if block[2] is not None:
            assert printed.getvalue() == block[2], f"{page}:{line}"
