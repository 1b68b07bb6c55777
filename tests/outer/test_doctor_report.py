"""The file to send us: what goes in, what stays out."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest

from opatlas.data import log as history
from opatlas.data.database import Database
from opatlas.data.manifest import Manifest
from opatlas.errors import OpAtlasError
from opatlas.outer.doctor.command import write_report


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """What probes left."""
    folder = tmp_path / "files"
    (folder / "replay").mkdir(parents=True)
    (folder / "replay" / "op_summary_1.csv").write_text("OP Type\nAdd\n")
    return folder


def test_what_probes_left_goes_in(files: Path, tmp_path: Path) -> None:
    names, left_out = write_report(tmp_path / "r.zip", {"host": "here"}, files, None)
    assert (names, left_out) == (["doctor.json", "probes/replay/op_summary_1.csv"], [])
    with zipfile.ZipFile(tmp_path / "r.zip") as written:
        assert written.namelist() == names
        assert json.loads(written.read("doctor.json")) == {"host": "here"}
        assert written.read("probes/replay/op_summary_1.csv") == b"OP Type\nAdd\n"


def test_the_last_run_of_a_database_goes_in(files: Path, tmp_path: Path) -> None:
    database = Database(tmp_path / "db")
    for run in ("20261121T163006-1f0c9a", "20261122T163006-1f0c9b"):
        (database.runs_dir).mkdir(parents=True, exist_ok=True)
        Manifest.path(database, run).write_text(json.dumps({"run_id": run}))
        history.file_path(database, run).write_bytes(b"measured")
    database.reports_dir.mkdir()
    for age, name in enumerate(("5.md", "4.md", "3.md", "2.md", "1.md")):
        (database.reports_dir / name).write_text(name)
        os.utime(database.reports_dir / name, (1000 - age, 1000 - age))
    kept = database.profiles_dir / "20261122T163006-1f0c9b" / "0001" / "PROF_1" / "mindstudio_profiler_output"
    kept.mkdir(parents=True)
    (kept / "op_summary_20261122.csv").write_text("OP Type\n")
    (kept.parent / "raw.data").write_text("raw")
    (tmp_path / "secret").write_text("secret")
    (kept / "op_summary_9.csv").symlink_to(tmp_path / "secret")
    names, left_out = write_report(tmp_path / "r.zip", {}, files, database.path)
    below = "database/profiles/20261122T163006-1f0c9b/0001/PROF_1/mindstudio_profiler_output"
    assert set(names[2:]) == {
        "database/runs/20261122T163006-1f0c9b.json",
        "database/runs/20261122T163006-1f0c9b.jsonl.gz",
        *(f"database/reports/{number}.md" for number in (5, 4, 3, 2)),
        f"{below}/op_summary_20261122.csv",
    }
    assert left_out == []


def test_a_report_that_cannot_be_written_leaves_nothing(files: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OpAtlasError):
        write_report(tmp_path / "file" / "r.zip", {}, files, None)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "files"]
