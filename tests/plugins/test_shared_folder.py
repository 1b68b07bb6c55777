"""What the processes of a session leave for each other."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from opatlas.plugins.cases import Plan
from opatlas.plugins.session_context import SharedFolder

from opatlas.errors import OpAtlasError


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedFolder]:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = SharedFolder()
    yield folder
    folder.remove()
    assert not folder.path.exists()


def test_word_reaches_who_joins(made: SharedFolder) -> None:
    joined = SharedFolder(made.path)
    assert (joined.read("stop"), joined.load_plan()) == ("", None)
    joined.write("stop", "no room on /data")
    joined.register_worker("gw3")
    made.publish_plan(Plan(error="none"))
    assert (made.read("stop"), made.worker_pids()) == ("no room on /data", [os.getpid()])
    assert joined.load_plan() == Plan(error="none")
    joined.remove()
    assert made.path.is_dir()


def test_a_plan_that_cannot_be_handed_names_the_remedy(made: SharedFolder) -> None:
    (made.path / "plan.pickle").mkdir()
    with pytest.raises(OpAtlasError, match=r"plan\.pickle .*TMPDIR"):
        made.publish_plan(Plan())
