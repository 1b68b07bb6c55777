"""A database that a stranger sent: no link out of it is followed, no pipe is waited for, no file outside changes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest
from abs_rows import record
from filelock import FileLock

from opatlas.cli.main import main
from opatlas.data import journal
from opatlas.data.csv_files import read_table, write_text
from opatlas.data.database import Database, SessionLock
from opatlas.data.journal import Journal, JournalHeader
from opatlas.data.manifest import Manifest
from opatlas.data.write_back import recover
from opatlas.errors import OpAtlasError, TableError
from opatlas.files import UnsafePath, safe_file, safe_folder
from opatlas.row.location import shipped_note
from opatlas.row.status import UpdateMode

HEADER = "Input Shapes,Input Data Types,Input Formats,Output Shapes,Output Data Types,Output Formats\n"
ROW = "1,FLOAT,ND,1,FLOAT,ND\n"
SECRET = "the secret of the user\n"


@pytest.fixture
def canary(tmp_path):
    """A folder outside of the database; after the test, everything in it is as it was."""
    folder = tmp_path / "home"
    (folder / "below").mkdir(parents=True)
    for name in ("secret.txt", "below/other.txt", "20261121T163006-1f0c9a.json", "table.csv"):
        (folder / name).write_text(HEADER + ROW if name.endswith(".csv") else SECRET)
    before = snapshot(folder)
    yield folder
    assert snapshot(folder) == before


def snapshot(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(path): (path.lstat().st_mtime_ns, path.lstat().st_mode, path.read_bytes() if path.is_file() else b"")
        for path in (folder, *folder.rglob("*"))
    }


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "DB"
    path.mkdir()
    (path / "Add.csv").write_text(HEADER + ROW)
    return Database(path)


def linked(database: Database, name: str, target: Path | str) -> Path:
    path = database.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path


@pytest.mark.parametrize("name", ["journal", "runs", "reports", "pruned", "profiles"])
@pytest.mark.parametrize("target", ["..", "../home", "../nowhere", ".", "LOOP"])
def test_a_folder_that_is_a_link_ends_a_command_before_it_writes(database, canary, name, target):
    linked(database, name, name if target == "LOOP" else target)
    with pytest.raises(UnsafePath) as refused, database.lock():
        pass
    assert refused.value.path == database.path / name
    assert refused.value.remedy
    assert sorted(os.listdir(database.path)) == sorted(["Add.csv", name])


def test_what_is_written_into_a_linked_folder_is_refused(database, canary):
    for name in ("journal", "runs", "reports", "pruned"):
        linked(database, name, canary)
    manifest = Manifest("20261121T163006-1f0c9a", 1.0, {}, "")
    for write in (
        lambda: manifest.write(database),
        lambda: Journal(database, JournalHeader("run", UpdateMode.ALL.value, False)),
        lambda: database.add_pruned("Add", ()),
        lambda: database.new_report_path("gaps", 0.0),
        lambda: SessionLock(database, run_id="run", command="pytest").acquire(),
    ):
        with pytest.raises(UnsafePath):
            write()


@pytest.mark.parametrize("target", ["../home/table.csv", "../home/nowhere.csv", "/dev/null", "Mul.csv", "../home"])
def test_a_csv_that_is_a_link_out_of_its_folder_is_neither_read_nor_written(database, canary, target):
    path = linked(database, "Mul.csv", target)
    with pytest.raises(TableError) as refused:
        database.read("Mul")
    assert refused.value.path == path
    with pytest.raises(UnsafePath):
        database.write(database.read("Add").__class__("Mul", path, read_table(database.path / "Add.csv").to_pandas()))
    assert path.is_symlink()
    assert len(database.read("Add").frame) == 1


def test_a_link_within_the_folder_and_a_database_behind_links_work(database, tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "link2").symlink_to("link/DB")
    (database.path / "parts").mkdir()
    (database.path / "parts" / "Mul.csv").write_text(HEADER + ROW)
    linked(database, "Mul.csv", "parts/Mul.csv")
    linked(database, "Sub.csv", "Mul.csv")
    for path in (database.path, tmp_path / "link" / "DB", tmp_path / "link2"):
        found = Database(path)
        with found.lock():
            for name in ("Add", "Mul", "Sub"):
                table = found.read(name)
                assert len(table.frame) == 1
                found.write(table)
        Manifest("20261121T163006-1f0c9a", 1.0, {}, "").write(found)
    assert (database.path / "Sub.csv").is_symlink()


#: What reads a file of a database.
READERS: dict[str, Callable[[Database, Path], object]] = {
    "Mul.csv": lambda database, path: database.read("Mul"),
    "SHIPPED.txt": lambda database, path: shipped_note(database.path),
    "runs/r.json": lambda database, path: Manifest.read(path),
    "journal/r.jsonl": lambda database, path: journal.read(path),
    "journal/session.json": lambda database, path: SessionLock(database, run_id="r", command="").acquire(),
}


def endless(path: Path) -> None:
    path.write_text(HEADER)
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("made", [os.mkfifo, os.mkdir, endless, lambda path: path.symlink_to("../../home/table.csv")])
def test_what_is_no_file_of_the_database_is_refused_at_once(database, canary, name, made):
    """A pipe is not waited for, and a file with no end does not fill the memory."""
    path = database.path / name
    path.parent.mkdir(exist_ok=True)
    made(path)
    with pytest.raises((OpAtlasError, IsADirectoryError)):
        READERS[name](database, path)
    before = path.lstat()
    if made is not endless:
        with pytest.raises(OpAtlasError):
            write_text(path, "x")
    assert path.lstat().st_mode == before.st_mode


@pytest.mark.parametrize("name", ["session.json", "session.lock", "database.lock"])
def test_a_session_writes_through_no_link_of_its_journal(database, canary, name):
    linked(database, f"journal/{name}", canary / "secret.txt")

    def take():
        with database.lock():
            lock = SessionLock(database, run_id="run", command="pytest")
            lock.acquire()
            lock.release()

    with pytest.raises(UnsafePath):
        take()
    # Whoever was refused holds nothing.
    (database.journal_dir / name).unlink()
    take()


def test_filelock_itself_opens_no_link(database, canary):
    linked(database, "journal/x.lock", canary / "secret.txt")
    with pytest.raises(OSError):
        FileLock(database.journal_dir / "x.lock").acquire(timeout=0)


def test_a_journal_that_is_a_link_stays_where_it_leads(database, canary):
    linked(database, "journal/20261121T163006-1f0c9a.jsonl", canary / "secret.txt")
    linked(database, "journal/20261121T163006-1f0c9b.lock", canary / "secret.txt")
    header = JournalHeader("20261121T163006-1f0c9b", UpdateMode.ALL.value, False)
    (database.journal_dir / "20261121T163006-1f0c9b.jsonl").write_text(json.dumps(asdict(header)) + "\n")
    found = recover(database, own_run="")
    assert len(found) == 2
    assert all(recovered.incomplete and recovered.problems for recovered in found)
    assert not any(SECRET.strip() in problem for recovered in found for problem in recovered.problems)


def test_what_a_shipped_database_tells_is_one_short_line(database):
    marker = database.path / "SHIPPED.txt"
    assert shipped_note(database.path) == ""
    marker.write_text("a machine\n" + SECRET)
    assert shipped_note(database.path) == "a machine"
    marker.write_text("x" * 10_000)
    assert len(shipped_note(database.path)) <= 300


def test_paths_that_are_not_there_are_fine(tmp_path):
    for path in (tmp_path / "a", tmp_path / "b" / "c"):
        assert safe_file(path) == path
        assert safe_folder(path) == path


@pytest.mark.parametrize("name", ["journal", "runs", "pruned"])
def test_a_source_with_a_linked_folder_is_refused_before_anything_is_combined(database, canary, tmp_path, name):
    linked(database, name, canary)
    target = tmp_path / "target"
    assert main(["combine", str(target), str(database.path)]) == 2
    assert not target.exists()


@pytest.mark.parametrize("kernel_type", ["../home/table", "/etc/evil", "..", "Add", ".hidden"])
@pytest.mark.parametrize("run_id", ["../../home/evil", "20261121T163006-1f0c9a"])
def test_names_in_a_journal_lead_nowhere(database, canary, tmp_path, kernel_type, run_id):
    values = {**record(1, 2.0).to_json(), "kernel_type": kernel_type, "run_id": run_id}
    header = JournalHeader(run_id, UpdateMode.ALL.value, True)
    database.journal_dir.mkdir()
    journal.write(database.journal_dir / "20261121T163006-1f0c9a.jsonl", header, [values])
    outside = {path for path in tmp_path.rglob("*") if database.path not in path.parents}
    recover(database, own_run="")
    assert {path for path in tmp_path.rglob("*") if database.path not in path.parents} == outside
    assert not any(".." in path.name for path in database.path.rglob("*"))
