"""The journal: what a killed session leaves, and what the next one makes of it."""

from __future__ import annotations

import errno
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from abs_rows import cells, read, record, write
from folding import killed

from opatlas.data import journal
from opatlas.data.database import Database
from opatlas.data.journal import Journal, JournalHeader
from opatlas.data.restore import rebuild
from opatlas.data.write_back import recover, write_back_run
from opatlas.errors import OpAtlasError

ROOT = Path(__file__).parents[2]


def test_each_record_is_in_the_file_before_the_next_one_comes(database: Database) -> None:
    kept = Journal(database, JournalHeader("run-1", "all", prune=False))
    for count in range(1, 4):
        kept.append(record(count, 1.0).to_json())
        assert len(journal.read(kept.path).records) == count
    kept.close()
    assert [path.name for path in database.journal_dir.glob("run-1*")] == ["run-1.jsonl"]


def test_a_torn_last_line_costs_that_line(database: Database) -> None:
    path = killed(database, record(1, 2.0), record(2, 3.0))
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    contents = journal.read(path)
    assert len(contents.records) == 1
    assert (contents.torn, contents.unreadable) == (True, ())


def test_journals_left_behind_are_merged_oldest_first_and_removed(database: Database) -> None:
    killed(database, record(1, 20.0, run="run-2"), run="run-2")
    killed(database, record(1, 10.0), record(2, 10.0))
    found = recover(database, own_run="")
    assert [(f.run_id, f.statuses.total(), f.problems) for f in found] == [("run-1", 2, []), ("run-2", 1, [])]
    assert [row["Average Duration(us)"] for row in read(database)] == ["20.0000", "10.0000", ""]
    assert not list(database.journal_dir.glob("*.jsonl"))


def test_a_journal_is_merged_by_one_session_only(database: Database) -> None:
    path = killed(database, record(1, 10.0))
    with journal.hold_if_abandoned(path) as first:
        assert first
        assert recover(database, own_run="") == []
        path.unlink()
    with journal.hold_if_abandoned(path) as again:
        assert not again
    assert not path.with_suffix(".lock").exists()


def test_a_journal_in_use_and_ones_own_are_left_alone(database: Database) -> None:
    own = killed(database, record(1, 10.0), run="own")
    code = (
        "import sys, time; from opatlas.data.database import Database; "
        "from opatlas.data.journal import JournalHeader, Journal; "
        "Journal(Database(sys.argv[1]), JournalHeader('other', 'all', False)); "
        "print('open', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(database.path)], cwd=ROOT, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert recover(database, own_run="own") == []
        assert own.exists()
        other.kill()
    assert [found.run_id for found in recover(database, own_run="own")] == ["other"]


def test_a_table_that_cannot_be_read_keeps_its_journal(database: Database) -> None:
    path = killed(database, record(1, 10.0))
    table = database.path / "Abs.csv"
    table.write_text("Input Shapes\n")
    (found,) = recover(database, own_run="")
    assert str(table) in found.problems[0]
    assert path.exists()
    assert table.read_text() == "Input Shapes\n"


def test_what_two_journals_of_one_session_hold_of_removed_rows_is_all_kept(database: Database) -> None:
    for size in (8, 9):
        journal_of_worker = Journal(database, JournalHeader("run-1", "missing-only", prune=False), part=f"gw{size}")
        journal_of_worker.append(record(size, 10.0).to_json())
        journal_of_worker.close()
    found = recover(database, own_run="")
    assert [f.incomplete for f in found] == [True, True]
    write(database, [cells(8), cells(9)])
    rebuild(database)
    assert [row["Average Duration(us)"] for row in read(database)] == ["10.0000", "10.0000"]


def append_until_refused(kept: Journal) -> None:
    while True:
        kept.append(record(2, 10.0).to_json())


def test_a_disk_that_loses_what_it_took_is_told_of(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system tells once, to whoever syncs: the thread of the journal."""
    kept = Journal(database, JournalHeader("run-1", "all", prune=False))
    told = threading.Event()
    journal_file = kept.path.stat()

    def sync(handle: int) -> None:
        if not told.is_set():
            assert os.path.samestat(os.fstat(handle), journal_file)
            told.set()
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.fsync", sync)
    kept.append(record(1, 10.0).to_json())
    assert told.wait(300)
    # The thread records the error right after `sync` has raised it.
    with pytest.raises(OSError, match="Input/output error"):
        append_until_refused(kept)
    (problem,) = kept.close()
    assert "Input/output error" in problem
    assert not kept.path.with_suffix(".lock").exists()


def test_each_record_reaches_the_disk_without_being_waited_for(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Journal(database, JournalHeader("run-1", "all", prune=False))
    synced = threading.Semaphore(0)
    monkeypatch.setattr("os.fsync", lambda handle: synced.release())
    for count in (1, 2, 3):
        kept.append(record(count, 1.0).to_json())
        assert synced.acquire(timeout=300), count
    kept.close()


@contextmanager
def room_for(size: int, path: Path) -> Iterator[None]:
    """Lets a file grow by so many bytes, and no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_record_that_there_is_no_room_for_leaves_the_others_readable(database: Database) -> None:
    kept = Journal(database, JournalHeader("run-1", "all", prune=False))
    kept.append(record(1, 10.0).to_json())
    kept.append(record(2, 20.0).to_json())
    with room_for(3, kept.path), pytest.raises(OSError) as full:
        kept.append(record(3, 30.0).to_json())
    assert full.value.errno == errno.EFBIG
    kept.append(record(4, 40.0).to_json())
    assert kept.close() == []
    contents = journal.read(kept.path)
    assert contents.records == (record(1, 10.0), record(2, 20.0), record(4, 40.0))
    assert (contents.unreadable, contents.torn) == ((), False)


def test_a_journal_that_was_removed_meanwhile_is_there_again_when_it_is_closed(database: Database) -> None:
    kept = Journal(database, JournalHeader("run-1", "all", prune=True))
    kept.append(record(1, 10.0).to_json())
    kept.path.unlink()
    kept.path.with_suffix(".lock").unlink()
    assert kept.close() == []
    assert kept.close() == []
    contents = journal.read(kept.path)
    assert (contents.header, contents.records) == (JournalHeader("run-1", "all", prune=True), (record(1, 10.0),))


def test_a_journal_whose_folder_cannot_be_made_again_is_kept_elsewhere(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = Journal(database, JournalHeader("run-1", "all", prune=True))
    kept.append(record(1, 10.0).to_json())
    shutil.rmtree(kept.path.parent)
    kept.path.parent.write_text("a file")
    (problem,) = kept.close()
    assert str(tmp_path / kept.path.name) in problem
    assert journal.read(tmp_path / kept.path.name).records == (record(1, 10.0),)


def test_the_processes_of_a_session_have_journals_of_their_own(tmp_path: Path) -> None:
    database = Database(tmp_path / "not" / "there")
    parts = [Journal(database, JournalHeader("run-1", "all", prune=False), part=part) for part in ("", "gw0", "gw1")]
    parts.append(Journal(database, JournalHeader("run-10", "all", prune=False)))
    names = [part.path.name for part in parts]
    assert names == ["run-1.jsonl", "run-1-gw0.jsonl", "run-1-gw1.jsonl", "run-10.jsonl"]
    assert sorted(path.name for path in journal.run_journals(database, "run-1")) == sorted(names[:3])
    assert journal.journals(database) == sorted(part.path for part in parts)
    for part in parts:
        part.close()


def test_a_journal_that_cannot_be_made_says_why_and_holds_nothing(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = database.path / "Abs.csv"
    with pytest.raises(OpAtlasError, match=f"^{re.escape(str(file))} "):
        Journal(Database(file), JournalHeader("run-1", "all", prune=False))

    def full(*arguments: object) -> None:
        raise OpAtlasError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(journal, "write", full)
        with pytest.raises(OpAtlasError, match=r"^the disk is full$"):
            Journal(database, JournalHeader("run-1", "all", prune=False))
    assert list(database.journal_dir.iterdir()) == []
    kept = Journal(database, JournalHeader("run-1", "all", prune=False))
    with pytest.raises(OpAtlasError, match=re.escape(kept.path.stem)):
        Journal(database, JournalHeader("run-1", "all", prune=False))
    kept.close()


def file_in_place_of_the_folder(database: Database) -> None:
    database.path.rename(database.path.with_name("elsewhere"))
    database.path.write_text("somebody else's")


def file_in_place_of_the_journals(database: Database) -> None:
    database.journal_dir.rename(database.path / "elsewhere")
    database.journal_dir.write_text("somebody else's")


@pytest.mark.parametrize("take_away", [file_in_place_of_the_folder, file_in_place_of_the_journals])
def test_an_open_journal_whose_folder_is_gone_is_told_once(
    database: Database, take_away: Callable[[Database], None]
) -> None:
    kept = Journal(database, JournalHeader("run-1", "all", prune=True))
    kept.append(record(1, 10.0).to_json())
    take_away(database)
    (problem,) = kept.close()
    assert str(kept.path) in problem
    assert kept.close() == []
    assert write_back_run(database, JournalHeader("run-1", "all", prune=True)).problems
