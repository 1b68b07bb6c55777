"""Paths that are no folder of a database."""

from __future__ import annotations

from pathlib import Path

import pytest

from opatlas.cli.main import main
from opatlas.errors import UsageError
from opatlas.files import absolute_path, expect_folder


def test_no_absolute_path_goes_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "there" / "deep").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "there")
    monkeypatch.chdir(tmp_path)
    assert absolute_path(Path("link")) == tmp_path / "link"
    assert absolute_path(Path("there/deep/../db")) == tmp_path / "there" / "db"
    assert absolute_path(tmp_path / "link" / ".." / "db") == tmp_path / "db"


def test_a_file_is_not_said_to_be_missing(tmp_path: Path) -> None:
    path, missing = tmp_path / "Abs.csv", tmp_path / "missing"
    path.touch()
    with pytest.raises(UsageError) as of_missing:
        expect_folder(missing, "")
    for may_be_made in (False, True):
        with pytest.raises(UsageError) as caught:
            expect_folder(path, "", may_be_made=may_be_made)
        assert str(tmp_path) in str(caught.value)
        assert str(caught.value).replace(path.name, missing.name) != str(of_missing.value)


def test_a_folder_that_is_made_later_need_not_be_there(tmp_path: Path) -> None:
    expect_folder(tmp_path / "new", "", may_be_made=True)
    with pytest.raises(UsageError, match=f"{tmp_path / 'new'}: .*: name one"):
        expect_folder(tmp_path / "new", "name one")


@pytest.mark.parametrize(
    "command",
    [
        ["history", "PATH", "Abs"],
        ["history", "PATH", "--restore", "csvs"],
        ["history", "PATH", "--restore", "pruned"],
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
