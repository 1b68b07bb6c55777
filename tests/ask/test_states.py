"""States of a database that are compared: git revisions, runs, and captures."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from abs_rows import cells, record, write
from compared import measured, shape, write_tables

from opatlas.ask.compare.comparison import compare_databases
from opatlas.ask.compare.states import compared_states
from opatlas.cli.main import main
from opatlas.data import log as history
from opatlas.data.database import Database
from opatlas.data.journal import JournalHeader
from opatlas.errors import OpAtlasError
from opatlas.row.columns import PROFILING_AVERAGE, PROFILING_POPULATIONS, PROFILING_SAMPLES, PROFILING_STD
from opatlas.row.location import ROOT

DEVICE = ("database", "data", "NVIDIA_H200", "torch", "torch2.11.0_cuda13.0")


def git(folder: Path, *arguments: str) -> str:
    """Runs git without the settings of this machine."""
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, env={**os.environ, **alone, **names}, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a database whose rows became faster, slower and other ones; returns the database."""
    folder = write_tables(
        tmp_path.joinpath(*DEVICE), {"Sort": [measured(1, 10), measured(2, 10)], "Abs": [measured(3, 4)]}
    )
    (folder / "notes.txt").write_text("no table")
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    git(tmp_path, "tag", "v1.0")
    (folder / "Abs.csv").unlink()
    write_tables(folder, {"Sort": [measured(1, 5), measured(2, 20), measured(3, 1)]})
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "-m", "second")
    write_tables(folder, {"Sort": [measured(1, 10), measured(2, 10)]})
    return folder


def figures(capsys: pytest.CaptureFixture[str], *places: object) -> dict[str, Any]:
    assert main(["compare", *map(str, places), "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def test_two_revisions_and_the_files_as_they_are(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = figures(capsys, f"{repository}@v1.0", f"{repository}@HEAD", repository)
    commit = git(repository, "rev-parse", "v1.0")[:10]
    assert found["baseline"]["name"] == found["baseline"]["state"] == f"v1.0 ({commit})"
    head, now = found["rivals"]
    assert {each["path"] for each in (found["baseline"], head, now)} == {str(repository)}
    assert (now["name"], now["state"]) == ("now", "")
    assert head["all"]["verdicts"] == {"FAST": 1, "SLOW": 1}
    assert (head["all"]["lost"], head["all"]["new"], head["all"]["rows"]) == (1, 1, 4)
    assert now["all"]["verdicts"] == {"SAME": 2}


def test_nothing_remains_of_a_revision(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    with compared_states([f"{repository}@v1.0", str(repository)]) as databases:
        assert compare_databases(databases).total("now").measured == 2
        extracted = [path.name for path in temporary.rglob("*") if path.is_file()]
    assert sorted(extracted) == ["Abs.csv", "Sort.csv"]
    assert not list(temporary.iterdir())


def test_a_repository_of_a_stranger_runs_nothing(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = figures(capsys, f"{repository}@v1.0", f"{repository}@HEAD")
    ran = tmp_path / "ran"
    command = f"touch {ran}; cat"
    (tmp_path / ".git" / "info" / "attributes").write_text("*.csv filter=x diff=x\n")
    for name in (
        "filter.x.smudge",
        "filter.x.process",
        "core.fsmonitor",
        "core.pager",
        "diff.x.textconv",
        "core.editor",
    ):
        git(tmp_path, "config", name, command)
    git(tmp_path, "config", "remote.origin.url", f"ext::sh -c touch% {ran}")
    git(tmp_path, "config", "remote.origin.promisor", "true")
    git(tmp_path, "config", "protocol.ext.allow", "always")
    assert figures(capsys, f"{repository}@v1.0", f"{repository}@HEAD") == before
    missing = git(tmp_path, "rev-parse", f"v1.0:{'/'.join(DEVICE)}/Abs.csv")
    (tmp_path / ".git" / "objects" / missing[:2] / missing[2:]).unlink()
    assert main(["compare", f"{repository}@v1.0", str(repository)]) == 2
    assert "Abs.csv" in capsys.readouterr().err
    assert not ran.exists()


def test_links_in_a_revision_are_no_tables(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (repository / "Neg.csv").symlink_to("/etc/passwd")
    root = repository.parents[4]
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "a link")
    (repository / "Neg.csv").unlink()
    assert figures(capsys, f"{repository}@HEAD", repository)["rivals"][0]["all"]["rows"] == 2


def test_without_git_revisions_are_refused(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(OpAtlasError, match="install"), compared_states([f"{repository}@v1.0", str(repository)]):
        pass


@pytest.mark.parametrize(
    "state",
    ["v2.0", "--help", "HEAD:database", "", "HEAD\nv1.0", "v" * 5000, "HEAD@{1000000}", "a@b@c"],
    ids=lambda text: text[:6],
)
def test_an_unknown_state_is_an_error_of_one_line(
    repository: Path, state: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["compare", f"{repository}@{state}", str(repository)]) == 2
    out, err = capsys.readouterr()
    [line] = err.splitlines()
    assert (out, f"{repository}@{state[:4]}" in line) == ("", True)
    assert len(line) < 600 + 3 * len(str(repository))


def test_a_state_named_twice_and_one_without_the_database_are_refused(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_tables(repository.parent / "torch2.12.0_cuda13.0", {"Sort": [measured(1, 2)]})
    for one, two in ((repository, repository), (f"{repository}@v1.0",) * 2, (f"{other}@v1.0", other)):
        assert main(["compare", str(one), str(two)]) == 2
        assert str(one) in capsys.readouterr().err


@pytest.mark.parametrize(("folder", "revision"), [(DEVICE[-1], "HEAD@{0}"), ("a@main", "main@{0}"), ("a@main", "@")])
def test_a_revision_with_an_at(
    repository: Path, folder: str, revision: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = repository.rename(repository.with_name(folder))
    git(repository.parent, "add", ".")
    git(repository.parent, "commit", "--quiet", "-m", "third")
    found = figures(capsys, f"{path}@{revision}", path)
    assert (found["baseline"]["path"], found["rivals"][0]["state"]) == (str(path), "")


def test_a_run_against_the_newest_durations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = Database(tmp_path / "database")
    write(database, [{**cells(size), "Average Duration(us)": "2.0"} for size in (1, 2)])
    records = [record(1, 4.0, 4.0, 4.0), record(2), record(3, 1.0, 1.0)]
    again = [record(1, run="run-1"), record(2, 9.0, 9.0), record(2, 2.0, 2.0)]
    history.add(database, JournalHeader("run-1", "all", prune=False), [*records, *again])
    found = figures(capsys, f"{database.path}@run-1", database.path)
    assert found["baseline"]["state"] == "run-1"
    calls = {row["signature"][:3]: row["calls"]["run-1"] for row in found["rows"]}
    # The second attempt failed, and the first one holds; of two durations the later.
    assert [(call["status"], call["sum_us"]) for call in calls.values()] == [
        ("measured", 4.0),
        ("measured", 2.0),
        ("measured", 1.0),
    ]


def captured(size: int, us: str, *, std: str = "0.1", samples: str = "50", populations: str = "") -> dict[str, str]:
    return {
        **shape(size),
        PROFILING_AVERAGE: us,
        PROFILING_STD: std,
        PROFILING_SAMPLES: samples,
        PROFILING_POPULATIONS: populations,
    }


def test_captures_against_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stand_in = "composition of 2 torch operators (pow, mean)"
    folder = write_tables(
        tmp_path / "database",
        {
            "Sort": [
                {**captured(1, "10"), **measured(1, 10.2)},
                {**captured(2, "10"), **measured(2, 20)},
                {**captured(3, "10", populations="25 around 8, 25 around 12"), **measured(3, 20)},
                {**captured(4, "10"), **measured(4, 20, stand_in=stand_in)},
                captured(5, "10"),
                measured(6, 5),
            ]
        },
    )
    found = figures(capsys, f"{folder}@captures", folder)
    assert (found["baseline"]["name"], found["rivals"][0]["name"]) == ("captures", "now")
    verdicts = [row["pairs"]["now"]["verdict"] if row["pairs"] else "" for row in found["rows"]]
    assert verdicts == ["SAME", "SLOW", "AMBIGUOUS", "NOT COMPARABLE", "", ""]
    assert (found["rivals"][0]["all"]["lost"], found["rivals"][0]["all"]["new"]) == (1, 1)
    assert main(["compare", f"{folder}@captures", str(folder), "--format", "text"]) == 0
    assert re.search(r" 1 +missing .* \S*@captures ", capsys.readouterr().out)


def test_a_device_stands_for_its_default_database() -> None:
    (folder,) = ROOT.glob("NVIDIA_H200/torch/torch*_cuda13.0")
    with compared_states(["NVIDIA_H200", "Intel_Xeon_Processor"]) as databases:
        assert databases[0].path == folder
    assert main(["compare", "NVIDIA_H200", "--ops", "SwiGlu"]) == 0
