"""docs/security.md names, for each promise, the tests that show it: they are there."""

from __future__ import annotations

import re

from test_faults_doc import TESTS, defined

PAGE = (TESTS.parent / "docs" / "security.md").read_text(encoding="utf-8")
_NODE = re.compile(r"`([\w/]+\.py)((?:::\w+)+)`")


def test_every_promise_has_a_test_that_exists() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")][2:]
    assert rows
    assert [row for row in rows if not _NODE.search(row)] == []
    named = _NODE.findall(PAGE)
    assert [file + name for file, name in named if name not in defined(TESTS / file)] == []
