"""Two sessions at once: one database is for one session, and everybody can see whose; other databases are free."""

from __future__ import annotations

import fcntl
import json
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from moods import Mood
from sessions import ROOT, Running, Sessions, row

pytestmark = pytest.mark.usefixtures("forks")
#: While row 40 waits, row 1 is in the journal; row 2 comes after it.
SIZES = (1, 40, 2)
#: The files of a session in the folder of the journals.
LOCKS = {"session.lock", "database.lock"}


def waiting(sessions: Sessions) -> Running:
    """A session that has the database, and waits in the middle of it."""
    sessions.write("Moody", [row(size) for size in SIZES])
    running = sessions.start_in_process(SIMULATED_DEVICES="1")
    running.wait_for_body(Mood.WAIT_FOR_GO)
    running.wait_for_records(1)
    return running


def expect_all_measured(sessions: Sessions, running: Running) -> None:
    """Lets a session end, as if it had been alone."""
    sessions.go()
    done = running.wait()
    assert (done.code, done.ledger()) == (0, {"measured": 3})
    assert sessions.statuses("Moody") == dict.fromkeys(SIZES, "measured")
    assert len({r["Run ID"] for r in sessions.read("Moody")}) == 1
    assert journals(sessions) == LOCKS


def journals(sessions: Sessions) -> set[str]:
    return {path.name for path in (sessions.database / "journal").iterdir()}


class Held:
    """A database that a session has.

    Attributes:
        sessions: to start others on the same database.
    """

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.holder = waiting(sessions)
        self._before = self._files()

    def expect_identity(self, output: str) -> None:
        """Checks that a message says whose the database is."""
        words = r"session (\S+) \(process (\d+) on (\S+), since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d: pytest (.*?)\)"
        found = re.search(words, output)
        assert found, output
        run_id, pid, host, arguments = found.groups()
        assert f"{run_id}.jsonl" in journals(self.sessions)
        assert (int(pid), host) == (self.holder.process.pid, platform.node())
        assert f"--database-path={self.sessions.database}" in arguments

    def expect_untouched(self) -> None:
        assert self._files() == self._before

    def _files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.sessions.database.rglob("*") if path.is_file()}


@pytest.fixture(scope="class")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    """The same for a class of tests; the session that has it ends well after all of them."""
    sessions = Sessions(tmp_path_factory.mktemp("held"))
    try:
        of_holder = Held(sessions)
        yield of_holder
        expect_all_measured(sessions, of_holder.holder)
    finally:
        sessions.end()


class TestADatabaseThatASessionHas:
    def test_the_second_is_refused_with_the_holder_of_the_database(self, held: Held) -> None:
        second = held.sessions.run(SIMULATED_DEVICES="2")
        assert second.code == pytest.ExitCode.USAGE_ERROR
        assert f"{held.sessions.database} is in use" in second
        held.expect_identity(second.output)
        held.expect_untouched()

    @pytest.mark.parametrize("path", ["database/../link/journal/.."])
    def test_a_database_is_the_same_by_any_path(self, held: Held, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
        link = held.sessions.folder / "link"
        if not link.exists():
            link.symlink_to(held.sessions.database, target_is_directory=True)
        with monkeypatch.context() as patch:
            patch.setattr(held.sessions, "database", Path(path))
            second = held.sessions.run(SIMULATED_DEVICES="1")
        assert second.code == pytest.ExitCode.USAGE_ERROR
        held.expect_identity(second.output)
        held.expect_untouched()

    def test_collecting_needs_no_lock(self, held: Held) -> None:
        listed = held.sessions.run("--collect-only", "-q")
        assert listed.code == 0
        assert listed.output.count("test_moody[Moody-") == 3
        held.expect_untouched()

    def test_a_merge_is_refused(self, held: Held, sessions: Sessions) -> None:
        sessions.write("Moody", [row(3)])
        done = database_command("combine", held.sessions.database, sessions.database)
        assert done.returncode != 0
        held.expect_identity(done.stderr)
        held.expect_untouched()


def test_an_ingest_goes_in_while_a_session_runs(sessions: Sessions) -> None:
    running = waiting(sessions)
    capture = sessions.folder / "kernel_details.csv"
    header = "Type,OP State,Accelerator Core,Start Time(us),Duration(us),Input Shapes,Input Data Types,Input Formats,"
    header += "Output Shapes,Output Data Types,Output Formats"
    launches = [f'Moody,dynamic,AI_VECTOR_CORE,1,5.0,"{n};{n}",FLOAT;FLOAT,ND;ND,"{n}",FLOAT,ND' for n in (1, 40, 7)]
    capture.write_text("\n".join((header, *launches)) + "\n")
    done = database_command("ingest", "--profiling-path", capture, "--database-path", sessions.database)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^signatures +3  1 new, 2 updated", done.stdout, re.MULTILINE)
    sessions.go()
    ended = running.wait()
    assert (ended.code, ended.ledger()) == (0, {"measured": 3})
    rows = {r["Input Shapes"]: r["Profiling Average Duration(us)"] for r in sessions.read("Moody")}
    assert rows == {"1;1": "5", "40;40": "5", "2;2": "", "7;7": "5"}
    assert sessions.statuses("Moody") == {1: "measured", Mood.WAIT_FOR_GO: "measured", 2: "measured", 7: ""}


def test_a_killed_holder_is_recognized_and_its_journals_are_merged(sessions: Sessions) -> None:
    # A worker of xdist has a row more in advance than the one that it runs.
    sizes, measured = (40, 2, 1, 3, 4), 2
    sessions.write("Moody", [row(size) for size in sizes])
    holder = sessions.start(SIMULATED_DEVICES="2")
    holder.wait_for_body(Mood.WAIT_FOR_GO)
    holder.wait_for_records(measured)
    holder.send(signal.SIGKILL)
    holder.wait()
    sessions.go()
    second = sessions.run_in_process("--update-mode=missing-only", SIMULATED_DEVICES="2")
    assert (second.code, second.ledger()) == (0, {"measured": len(sizes) - measured})
    process = f"process {holder.process.pid} on {platform.node()}"
    assert process in second
    assert sessions.statuses("Moody") == dict.fromkeys(sizes, "measured")
    assert journals(sessions) == LOCKS


def test_other_databases_on_other_devices_run_at_the_same_time(sessions: Sessions) -> None:
    databases = [sessions.database, sessions.folder / "second"]
    databases[1].mkdir()
    both = []
    for device, sessions.database in enumerate(databases):
        sessions.write("Moody", [row(size) for size in SIZES])
        both.append(sessions.start_in_process(SIMULATED_DEVICES="2", SIMULATED_VISIBLE_DEVICES=str(device)))
        # The first one waits in its row still when the second has come as far.
        both[-1].wait_for_body(Mood.WAIT_FOR_GO)
        (sessions.folder / "body-40").unlink()
    for device, (sessions.database, running) in enumerate(zip(databases, both, strict=True)):
        expect_all_measured(sessions, running)
        (manifest,) = (sessions.database / "runs").glob("*.json")
        assert json.loads(manifest.read_text())["device"]["facts"] == {"id": str(device)}


def database_command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "opatlas", *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


#: Waits for a device are reported at once, and end soon.
IMPATIENT = """
from opatlas.run.devices import device_lock

device_lock.LONGEST_WAIT_S = 3.0
"""


def test_a_wait_for_a_device_is_reported_and_ends(sessions: Sessions) -> None:
    (sessions.folder / "impatient.py").write_text(IMPATIENT)
    sessions.write("Moody", [row(1), row(2)])
    lock = sessions.folder / "lock-0"
    with open(lock, "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        done = sessions.run("-p", "impatient", SIMULATED_DEVICES="1")
    assert done.code == pytest.ExitCode.TESTS_FAILED
    assert done.ledger() == {"not run": 2}
    assert done.has_line("waiting for the device", lock)
    assert "stopped: " in done


def test_a_wait_for_another_session_is_reported_once(sessions: Sessions) -> None:
    """Row 1 of the second session waits for row 40 of the first one, on the same device."""
    sessions.write("Moody", [row(Mood.WAIT_FOR_GO)])
    first = sessions.start_in_process(SIMULATED_DEVICES="1")
    first.wait_for_body(Mood.WAIT_FOR_GO)
    sessions.database = sessions.folder / "second"
    sessions.database.mkdir()
    sessions.write("Moody", [row(1), row(2)])
    second = sessions.start(SIMULATED_DEVICES="1")
    second.wait_until(lambda: "waiting for the device" in second.output.read_text())
    sessions.go()
    assert first.wait().code == 0
    done = second.wait()
    assert (done.code, done.ledger()) == (0, {"measured": 2})
    assert f"process {first.process.pid} on {platform.node()}" in done
    assert done.output.count("waiting for the device") == 1


def test_a_limit_of_pytest_timeout_that_ends_a_wait_is_not_the_fault_of_the_row(sessions: Sessions) -> None:
    sessions.write("Moody", [row(1)])
    with open(sessions.folder / "lock-0", "w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        done = sessions.run("--timeout=2", SIMULATED_DEVICES="1")
    assert done.code == pytest.ExitCode.TESTS_FAILED
    assert done.ledger() == {"not run": 1}
