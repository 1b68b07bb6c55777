"""Each folder here is a session that holds a promise (README.md). `--write-golden` writes what came out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from acceptance import Acceptance, read_plan
from sessions import Sessions

HERE = Path(__file__).parent
FOLDERS = sorted(path.parent for path in HERE.glob("*/session.yaml"))


def _cases() -> Iterator[object]:
    for folder in FOLDERS:
        marks = [pytest.mark.slow] if read_plan(folder).slow else []
        yield pytest.param(folder, id=folder.name, marks=marks)


@pytest.mark.parametrize("folder", list(_cases()))
def test_what_comes_out_is_what_was_promised(folder: Path, sessions: Sessions, request: pytest.FixtureRequest) -> None:
    plan = read_plan(folder)
    for source in (*(HERE / "inputs" / name for name in plan.inputs), folder / "input"):
        if source.is_dir():
            shutil.copytree(source, sessions.folder, dirs_exist_ok=True)
    acceptance = Acceptance(plan, sessions)
    found = acceptance.run()
    expected = folder / "expected.json"
    if request.config.getoption("--write-golden"):
        expected.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    remedy = f"run `pytest {__file__} --write-golden`, and read the change"
    assert found == json.loads(expected.read_text()), f"{acceptance.output}\n{remedy}"


def test_each_session_is_in_the_list_of_promises() -> None:
    listed = (HERE / "README.md").read_text()
    assert not [folder.name for folder in FOLDERS if f"`{folder.name}`" not in listed]
