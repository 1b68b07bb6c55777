"""What a row does to its process costs that row and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sessions import ROOT, Sessions, row


def test_a_wrong_result_fails_and_names_the_difference(sessions: Sessions) -> None:
    sessions.write("Moody", [row(19)])
    done = sessions.run()
    assert sessions.statuses("Moody") == {19: "failed"}
    assert "differs from the reference add in 19 of 19 checked elements" in done


def test_a_killed_session_is_merged_by_the_next_one(sessions: Sessions) -> None:
    sessions.write("Moody", [row(1), row(2), row(13), row(3)])
    process = _started(sessions)
    journal = _wait_for_lines(sessions.database / "journal", 3)
    device_process = _child_of(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert _is_gone(device_process), "the device process outlived its parent"
    with open(journal, "ab") as file:
        file.write(b'{"kernel_type":"Moody","sig')
    assert sessions.statuses("Moody") == {1: "", 2: "", 13: "", 3: ""}
    done = sessions.run("-k", "Moody-3_3")
    assert "merged 2 records that session" in done
    assert "the last record is cut off" in done
    assert sessions.statuses("Moody") == {1: "measured", 2: "measured", 13: "", 3: "measured"}
    assert not list((sessions.database / "journal").glob("*.jsonl"))


@pytest.mark.parametrize("options", [(), ("-n", "2")])
def test_a_device_that_cannot_be_opened_ends_the_session_and_marks_no_row(
    sessions: Sessions, options: tuple[str, ...]
) -> None:
    sessions.write("Toy", [row(1), row(2), row(3)])
    torch = sessions.folder / "broken" / "torch.py"
    torch.parent.mkdir()
    torch.write_text('raise ImportError("no such library")\n')
    done = sessions.run(*options, PYTHONPATH=os.pathsep.join((str(torch.parent), str(ROOT))))
    assert done.code != 0
    assert "device process did not start: ImportError: no such library" in done
    assert "INTERNALERROR" not in done
    assert set(sessions.statuses("Toy").values()) == {""}


def test_an_unreadable_file_fails_the_session_but_the_others_run(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    broken = sessions.database / "OtherToy.csv"
    broken.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    done = sessions.run()
    assert done.code == 1
    assert done.outcomes() == {"passed": 1}
    assert "OtherToy.csv: a Git LFS pointer, not the data itself. Run `git lfs pull`" in done
    assert broken.read_text().startswith("version https://git-lfs")


def test_a_file_without_rows_is_named(sessions: Sessions) -> None:
    sessions.write("Toy", [row(1)])
    empty = sessions.database / "OtherToy.csv"
    empty.write_text(",".join(row(1)))
    done = sessions.run()
    assert (done.code, done.outcomes()) == (0, {"passed": 1})
    assert f"{empty} has a header and no rows" in done


def test_a_database_that_is_not_there_is_named_with_the_remedy(tmp_path: Path, sessions: Sessions) -> None:
    done = sessions.run(f"--database-path={tmp_path / 'nowhere'}")
    assert done.code != 0
    assert "nowhere: no such directory" in done
    assert "Traceback" not in done


@pytest.mark.skipif(sys.platform != "linux", reason="process tables are read from /proc")
def test_an_empty_database_gets_a_starter(sessions: Sessions) -> None:
    listed = sessions.run("--co", "-q")
    assert not list(sessions.database.glob("*.csv"))
    assert "Traceback" not in listed
    sessions.run("-k", "nothing-of-this-name")
    assert (sessions.database / "RmsNorm.csv").exists()


def _started(sessions: Sessions) -> subprocess.Popen[bytes]:
    options = ("-p", "no:cacheprovider", f"--database-path={sessions.database}", "--repeat-count=2")
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", *options],
        cwd=sessions.folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
    )


def _wait_for_lines(directory: Path, count: int) -> Path:
    for _ in range(600):
        for path in directory.glob("*.jsonl"):
            if path.read_bytes().count(b"\n") >= count:
                return path
        time.sleep(0.1)
    raise AssertionError("the session wrote no journal within 60 s")


def _child_of(parent: int) -> int:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return int(children[0])


def _is_gone(pid: int) -> bool:
    for _ in range(100):
        try:
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.1)
    return False
