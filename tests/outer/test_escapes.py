"""Candidates that reach for other rows, other processes and later sessions: one session has them all."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import warm_python
from planted_trials import PLANTED

from opatlas.row.columns import ERROR_CLASS, MICROBENCH_MEDIAN, STATUS

pytestmark = pytest.mark.usefixtures("forks")
ROOT = Path(__file__).parents[2]
ESCAPES = PLANTED.parent / "escapes"
#: Planted bytecode is found where modules are imported.
ANEW = {**os.environ, warm_python.IMPORTS_ANEW: "1"}
#: The error class of each candidate that is judged.
VERDICTS = {
    "abridges_journal": "pass",
    "adds_journal": "pass",
    "adopts": "pass",
    "edits_bytecode": "pass",
    "edits_bytecode_of_plugin": "pass",
    "edits_rival": "pass",
    "forges_journal": "pass",
    "hogs": "pass",
    "kills_keeper": "crash/SIGKILL",
    "leaves_daemon": "pass",
    "replaces_journal": "pass",
    "stops_keeper": "pass",
}


def own_environment(folder: Path) -> dict[str, str]:
    """That of the session's processes, in which planted bytecode shows that it runs."""
    return {**ANEW, "ESCAPES": str(folder / "own" / "softmax")}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a session that has ended, and what it printed."""
    folder = tmp_path_factory.mktemp("escapes")
    shutil.copytree(ESCAPES, folder / "own" / "softmax", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "set").mkdir()
    shutil.copy(PLANTED / "tasks" / "softmax.py", folder / "set")
    options = [
        "--tasks",
        folder / "set",
        "--database-path",
        folder / "db",
        "--repeat-count=10",
        "-p",
        "no:cacheprovider",
    ]
    command = [sys.executable, "-m", "pytest", "-q", "bench/", *options, "--implementation", f"torch,{folder / 'own'}"]
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, env=own_environment(folder), check=False, capture_output=True, text=True
    )
    print(done.stdout, done.stderr)
    return folder, done.stdout


def rows(folder: Path) -> Mapping[str, Mapping[str, str]]:
    """The row of each candidate."""
    found = {}
    for path in (folder / "db" / "implementations").glob("own-*/set.softmax.csv"):
        with path.open(newline="") as file:
            [found[path.parent.name.split("-")[1]]] = csv.DictReader(file)
    return found


def test_each_has_its_verdict(session: tuple[Path, str]) -> None:
    found = rows(session[0])
    assert {name: found[name][ERROR_CLASS] for name in VERDICTS} == VERDICTS


def test_no_duration_is_forged(session: tuple[Path, str]) -> None:
    medians = [float(cells[MICROBENCH_MEDIAN]) for cells in rows(session[0]).values() if cells.get(MICROBENCH_MEDIAN)]
    assert len(medians) == 11
    assert min(medians) > 1
    assert "did not write" in session[1]


def test_a_changed_rival_is_not_measured(session: tuple[Path, str]) -> None:
    assert rows(session[0]).get("rival", {}).get(STATUS) != "measured"


def test_planted_bytecode_does_not_run(session: tuple[Path, str]) -> None:
    command = [sys.executable, "-c", "import opatlas.outer.judging.results"]
    subprocess.run(command, cwd=ROOT, env=own_environment(session[0]), check=True)
    assert not list(session[0].rglob("*.ran"))


def test_no_process_is_left(session: tuple[Path, str]) -> None:
    deadline = time.monotonic() + 60
    while left := [path for path in Path("/proc").glob("[0-9]*/cmdline") if b"sleep\x003011" in _read(path)]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
