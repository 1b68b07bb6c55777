"""Temporary folders: one goes with its process, if need be when the next one is made."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from opatlas.files import TemporaryFolder

ROOT = Path(__file__).parents[2]
#: Of a process that makes a folder and is killed.
KILLED = """
import os, signal
from opatlas.files import TemporaryFolder
(TemporaryFolder("group").path / "file").write_text("large")
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def age(path: Path) -> None:
    """By an hour."""
    os.utime(path, (time.time() - 3600,) * 2)


def test_a_folder_goes_with_its_context(folder: Path) -> None:
    with TemporaryFolder("session") as path:
        (path / "file").write_text("")
        assert path.parent == folder
    assert list(folder.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_folder_of_any_purpose(folder: Path) -> None:
    killed = subprocess.run(
        [sys.executable, "-c", KILLED], cwd=ROOT, env={**os.environ, "TMPDIR": str(folder)}, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    (left,) = folder.iterdir()
    others = [folder / "opatlas-cpu-0.lock", folder / "other"]
    for other in others:
        other.mkdir()
        age(other)
    with TemporaryFolder("session"):
        assert left.exists(), "it may not be held yet"
    age(left)
    with TemporaryFolder("session"):
        assert not left.exists()
    assert sorted(folder.iterdir()) == others


def test_a_folder_that_is_held_stays(folder: Path) -> None:
    with TemporaryFolder("group") as held:
        age(held)
        with TemporaryFolder("session"):
            assert held.exists()


def test_no_link_is_followed(folder: Path) -> None:
    precious = folder / "precious"
    precious.mkdir()
    (precious / "file").write_text("")
    age(precious)
    (folder / "opatlas-tmp-group-link").symlink_to(precious)
    with TemporaryFolder("session"):
        assert (precious / "file").exists()
