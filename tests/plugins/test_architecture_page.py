"""docs/architecture.md quotes the page that shows the way of a row."""

from __future__ import annotations

from pathlib import Path

from opatlas.plugins import replay_session


def test_the_page_quotes_the_steps_of_a_session() -> None:
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert (replay_session.__doc__ or "").strip() in page
