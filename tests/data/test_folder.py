"""Paths that are no folder of a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.cli.main import main
from opatlas.files import absolute_path


def test_no_absolute_path_goes_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    assert absolute_path(Path("link")) == tmp_path / "link"
    assert absolute_path(Path("there/deep/../db")) == tmp_path / "there" / "db"
    assert absolute_path(tmp_path / "link" / ".." / "db") == tmp_path / "db"


@pytest.mark.parametrize(
    "command",
    [
        ["history", "PATH", "Abs"],
        ["history", "PATH", "--restore", "csvs"],
        ["combine", "PATH", "."],
        ["plot", "PATH", "--output", "out"],
        ["ingest", "--profiling-path", ".", "--database-path", "PATH"],
        ["ingest", "--database-path", "PATH", "--attention-records", "kernel_details.csv"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_refuses_them_and_makes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("kernel_details.csv").touch()
    assert main(["kernel_details.csv" if word == "PATH" else word for word in command]) != 0
    assert [path.name for path in tmp_path.iterdir()] == ["kernel_details.csv"]
