"""What registers itself by entry points: each name leads to something, and what is deleted leaves none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from opatlas import installation
from opatlas.cli.main import BUILT_IN
from opatlas.installation import COMMANDS, REPORT_PAGES, ROW_SOURCES, SCHEDULERS, Command


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A checkout whose pyproject.toml registers two commands."""
    entries = 'here = "opatlas.text:pluralize"\ndeleted = "opatlas.outer.deleted:COMMAND"\n'
    tmp_path.joinpath("pyproject.toml").write_text(
        f'[x]\n\n[project.entry-points."{COMMANDS}"]\n{entries}\n[y]\na = "b:c"\n'
    )
    monkeypatch.setattr(installation, "CHECKOUT", tmp_path)
    installation.extensions.cache_clear()
    yield tmp_path
    installation.extensions.cache_clear()


def test_what_is_deleted_leaves_no_name(checkout: Path) -> None:
    found = installation.extensions(COMMANDS)
    assert found["here"].load()(2, "row") == "2 rows"
    assert {"deleted", "a"}.isdisjoint(found)


@pytest.mark.parametrize("group", [COMMANDS, SCHEDULERS, ROW_SOURCES, REPORT_PAGES])
def test_each_entry_of_this_checkout_can_be_loaded(group: str) -> None:
    for name, entry in installation.extensions(group).items():
        value = entry.load()
        assert group != COMMANDS or isinstance(value, Command), name
        assert name not in BUILT_IN
