"""The disk fills: no CSV is harmed, no record that is written is lost, and the session names the remedy."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from moods import Mood
from sessions import QUICKLY, Finished, Running, Sessions, row

from opatlas.data import log as history
from opatlas.data.database import Database

pytestmark = pytest.mark.usefixtures("forks")
#: While row 40 waits, the first four rows are measured by one device, or by the other of two; row 5 comes after it.
ROWS = {"1": (1, 2, 3, 4, 40, 5), "2": (40, 5, 6, 1, 2, 3, 4)}
FULL = os.strerror(errno.ENOSPC)
TOO_LARGE = os.strerror(errno.EFBIG)
#: Samples enough for a record of some 20 kB.
LONG_RECORDS = ("--repeat-count=2000", "--cache=warm")
#: More than a session prints, since its output goes to a file here.
LIMIT = 48 << 10


class Disk:
    """A small disk of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self, *, leaving: int = 0) -> None:
        with open(self._ballast, "wb", buffering=0) as file:
            with contextlib.suppress(OSError):
                while file.write(bytes(4096)):
                    pass
            file.truncate(file.tell() - leaving)

    def make_room(self) -> None:
        self._ballast.unlink()


@contextlib.contextmanager
def mounted(path: Path) -> Iterator[Disk]:
    """A disk of 512 kB at `path`; skips the test where mounting is not permitted."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", path], check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no small disk can be mounted here: {getattr(error, 'stderr', '') or error}")
    try:
        yield Disk(path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


@pytest.fixture
def disk(sessions: Sessions) -> Iterator[Disk]:
    """The disk of the database; the temporary folder is on another."""
    with mounted(sessions.folder / "disk") as small:
        sessions.database = small.path / "database"
        sessions.database.mkdir()
        yield small


@pytest.fixture
def temporary(sessions: Sessions) -> Path:
    """The temporary folder of the sessions."""
    folder = sessions.folder / "temporary"
    folder.mkdir()
    return folder


def waiting_in_row_40(
    sessions: Sessions, devices: str, temporary: Path, *options: str, measure: Sequence[str] = QUICKLY
) -> Running:
    """A session that has four rows in journals, and whose row 40 runs; a worker has two rows that wait behind it."""
    # The device process does not matter for the files.
    start = sessions.start_in_process if devices == "1" else sessions.start
    running = start(*options, measure=measure, SIMULATED_DEVICES=devices, TMPDIR=str(temporary))
    running.wait_for_body(Mood.WAIT_FOR_GO)
    running.wait_for_records(4)
    return running


def go(sessions: Sessions, running: Running) -> Finished:
    sessions.go()
    return running.wait()


def run_ids(sessions: Sessions) -> dict[int, str]:
    """Run IDs of measured rows by the size of the row."""
    rows = (r for r in sessions.read("Moody") if r.get("Status") == "measured")
    return {int(r["Input Shapes"].partition(";")[0]): r["Run ID"] for r in rows}


def only_run(sessions: Sessions) -> str:
    (manifest,) = (sessions.database / "runs").glob("*.json")
    return manifest.stem


def half_made(sessions: Sessions) -> list[str]:
    """Files that neither were there before nor are results of a session."""
    known = {"session.lock", "database.lock", "ballast"}
    kept = (".csv", ".jsonl", ".json", ".gz", ".md")
    files = [path for path in sessions.database.rglob("*") if path.is_file() and path.name not in known]
    return [path.name for path in files if path.suffix not in kept or path.name.startswith((".", "session"))]


def test_full_from_the_start(sessions: Sessions, disk: Disk) -> None:
    path = sessions.write("Moody", [row(1), row(2)])
    before = path.read_bytes()
    disk.fill()
    done = sessions.run(SIMULATED_DEVICES="2")
    assert done.code == pytest.ExitCode.USAGE_ERROR
    assert done.has_line(sessions.database, FULL)
    assert "Traceback" not in done
    assert not (sessions.folder / "body-1").exists()
    assert (path.read_bytes(), half_made(sessions)) == (before, [])


def test_full_while_journalling(sessions: Sessions, disk: Disk, temporary: Path) -> None:
    path = sessions.write("Moody", [row(size) for size in ROWS["1"]])
    before = path.read_bytes()
    running = waiting_in_row_40(sessions, "1", temporary, measure=LONG_RECORDS)
    disk.fill()
    done = go(sessions, running)
    run = only_run(sessions)
    assert (done.code, done.ledger()) == (1, {"measured": 4, "not run": 2})
    assert done.has_line("stopped: ", sessions.database, FULL)
    assert done.has_line("NOT WRITTEN BACK", path, FULL)
    assert done.has_line("4 records", sessions.database)
    assert (path.read_bytes(), half_made(sessions)) == (before, [])
    disk.make_room()
    sessions.go()
    again = sessions.run_in_process("--update-mode=missing-only", SIMULATED_DEVICES="1")
    assert (again.code, again.ledger()) == (0, {"measured": 2})
    found = run_ids(sessions)
    assert found.keys() == {1, 2, 3, 4, 5, 40}
    assert {found[size] for size in (1, 2, 3, 4)} == {run}


def test_full_while_merging(sessions: Sessions, disk: Disk, temporary: Path) -> None:
    path = sessions.write("Moody", [{"Note": "n" * 8000, **row(size)} for size in ROWS["2"]])
    before = path.read_bytes()
    running = waiting_in_row_40(sessions, "2", temporary)
    # Room for the journals, but not for the table.
    disk.fill(leaving=16384)
    done = go(sessions, running)
    run = only_run(sessions)
    assert (done.code, done.ledger()) == (1, {"measured": 7})
    assert re.search(r"^written +0 updated", done.output, re.MULTILINE)
    assert done.has_line("NOT WRITTEN BACK", path, FULL)
    assert "next session" in done
    assert (path.read_bytes(), half_made(sessions)) == (before, [])
    disk.make_room()
    again = sessions.run("--update-mode=missing-only", SIMULATED_DEVICES="1")
    assert again.code == 0
    assert re.search(r"^nothing to do +7 ", again.output, re.MULTILINE)
    assert run_ids(sessions) == dict.fromkeys(ROWS["2"], run)


def test_full_while_writing_reports_and_the_manifest(sessions: Sessions, temporary: Path) -> None:
    sessions.write("Moody", [row(size) for size in ROWS["1"]])
    reports, runs = sessions.database / "reports", sessions.database / "runs"
    with mounted(reports) as disk_of_reports, mounted(runs) as disk_of_runs:
        running = waiting_in_row_40(sessions, "1", temporary)
        disk_of_reports.fill()
        disk_of_runs.fill()
        done = go(sessions, running)
        run = only_run(sessions)
        assert (done.code, done.ledger()) == (1, {"measured": 6})
        assert done.has_line("written back, but", runs / f"{run}.json", FULL)
        assert done.has_line(reports, FULL)
        assert run_ids(sessions) == dict.fromkeys(ROWS["1"], run)
        assert half_made(sessions) == []
        assert json.loads((runs / f"{run}.json").read_text())["finished_at"] is None
        # The history has no room either.
        assert sessions.records() == 6
        disk_of_runs.make_room()
        sessions.run("--update-mode=missing-only", SIMULATED_DEVICES="1")
        assert sessions.records() == 0
        assert len(history.read(Database(sessions.database), run).records) == 6


def test_a_row_whose_record_has_no_room_is_not_run(sessions: Sessions) -> None:
    sessions.write("Moody", [row(size) for size in range(1, 17)])
    done = sessions.run(measure=LONG_RECORDS, file_limit=LIMIT, SIMULATED_DEVICES="1")
    assert done.code == 1
    assert done.has_line("stopped: ", sessions.database, TOO_LARGE)
    measured = done.ledger()["measured"]
    assert 1 <= measured < 16
    assert re.search(rf"^written +{measured} updated", done.output, re.MULTILINE)
    assert f"1 failed, {measured} passed" in done.output
    assert list(run_ids(sessions).values()) == [only_run(sessions)] * measured
    assert half_made(sessions) == []
    # The history of noisy samples may be larger than the limit: then the journals stay for the next session.
    sessions.run_in_process("-k", "nothing", SIMULATED_DEVICES="1")
    assert not list((sessions.database / "journal").glob("*.jsonl"))
    assert len(history.read(Database(sessions.database), only_run(sessions)).records) == measured
