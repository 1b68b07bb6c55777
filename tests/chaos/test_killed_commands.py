"""SIGKILL to a command that changes a database, at a random moment: run again, it leaves what one leaves that was not
killed.

Every kill is drawn from a seed; OPATLAS_CHAOS_SEED=1000 draws others, OPATLAS_CHAOS_KILLS=300 more of them.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import warm_python
from abs_rows import MIDDLE, NEW, OLD, cells, manifest, read, record, write
from captures import launched, write_capture
from folding import csvs, joined, session
from sessions import ROOT

from opatlas.capture.ingest import IngestRequest, ingest_captures
from opatlas.data import log
from opatlas.data.csv_files import TEMPORARY_SUFFIX
from opatlas.data.database import Database
from opatlas.data.log import Log
from opatlas.row.columns import AVERAGE, RUN_ID
from opatlas.row.quality import valid_duration
from opatlas.row.record import Record, RowName
from opatlas.row.signature import signature

TYPES = ("Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "Log", "Neg", "Sign", "Sin", "Sqrt", "Tanh")
SIZES = range(1, 7)
COMMANDS = ("ingest", "combine", "restore")
STARTS = {OLD: 1763726400.0, MIDDLE: 1763812800.0, NEW: 1763899200.0}
FAST = len(COMMANDS)
KILLS = int(os.environ.get("OPATLAS_CHAOS_KILLS", "12"))
FIRST = int(os.environ.get("OPATLAS_CHAOS_SEED", "0"))
_INGEST = re.compile(rb"ingest-\d{8}T\d{6}Z-[0-9a-f]{6}")


def records(run: str, sizes: Sequence[int]) -> list[Record]:
    """Records of all kernel types; each duration says the row and the run."""
    us = {(size, kernel_type): size + number / 16 for number, kernel_type in enumerate(TYPES) for size in sizes}
    return [
        replace(
            record(size, 10 * list(STARTS).index(run) + value, run=run),
            kernel_type=kernel_type,
            signature=signature(kernel_type, cells(size)),
        )
        for (size, kernel_type), value in us.items()
    ]


def measured(database: Database, run: str, sizes: Sequence[int]) -> None:
    manifest(database, run, STARTS[run])
    session(database, *records(run, sizes))


def capture(folder: Path, us: float) -> Path:
    path = folder / f"capture-{us:g}/kernel_details.csv"
    launches = [launched(name, us + size, cells(size)) for name in TYPES for size in SIZES[:3]]
    return write_capture(path, launches)


class Undisturbed:
    """What each command finds, what it leaves when nobody kills it, and how long it takes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        target, source = Database(folder / "target"), Database(folder / "source")
        for database in (target, source):
            database.path.mkdir()
            for kernel_type in TYPES:
                write(database, [{**cells(size), AVERAGE: "", "Note": ""} for size in SIZES], kernel_type)
        for kernel_type in TYPES:
            rows = read(target, kernel_type)
            rows[3][AVERAGE] = "007.5"
            write(target, rows, kernel_type)
        measured(target, OLD, SIZES[:3])
        measured(source, MIDDLE, (2, 4, 9))
        measured(source, NEW, (1, 2))
        path = capture(folder, 8.0)
        assert not ingest_captures(target, [path], IngestRequest(path)).problems
        self.capture = capture(folder, 80.0)
        damaged = Database(shutil.copytree(target.path, folder / "damaged"))
        joined(damaged, source, pooled=True)
        for kernel_type in TYPES:
            write(
                damaged, [{**row, AVERAGE: row[AVERAGE] and "66.5"} for row in read(damaged, kernel_type)], kernel_type
            )
        self.after: dict[str, dict[str, bytes]] = {}
        self.length_s: dict[str, float] = {}
        for command in COMMANDS:
            database = self.copy(command, folder / f"undisturbed-{command}")
            # The first process of the warm Python takes longer.
            assert self.start(command, self.copy(command, folder / f"warm-{command}")).wait() == 0
            began = time.monotonic()
            assert self.start(command, database).wait() == 0
            self.length_s[command] = time.monotonic() - began
            self.after[command] = tables(database)

    def copy(self, command: str, folder: Path) -> Database:
        return Database(shutil.copytree(self.folder / ("damaged" if command == "restore" else "target"), folder))

    def start(self, command: str, database: Database) -> subprocess.Popen[bytes]:
        words = {
            "ingest": ["ingest", "--profiling-path", self.capture, "--database-path", database.path],
            "combine": ["combine", database.path, self.folder / "source", "--pool"],
            "restore": ["history", database.path, "--restore", "csvs"],
        }[command]
        return warm_python.Popen(
            [sys.executable, "-m", "opatlas", *map(str, words)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def tables(database: Database) -> dict[str, bytes]:
    """The CSVs, with the ingests named by their order."""
    names: dict[bytes, bytes] = {}
    for path in sorted(database.runs_dir.glob("ingest-*.json")):
        names[path.stem.encode()] = b"ingest %d" % len(names)
    return {name: _INGEST.sub(lambda found: names[found[0]], text) for name, text in csvs(database).items()}


def durations(database: Database) -> set[tuple[RowName, str, str]]:
    """The replayed durations of the CSVs, with their runs. All CSVs can be read."""
    return {
        (RowName(kernel_type, signature(kernel_type, row)), row.get(RUN_ID, ""), row[AVERAGE])
        for kernel_type in database.kernel_types()
        for row in read(Database(database.path), kernel_type)
        if valid_duration(row[AVERAGE])
    }


def check_nothing_is_lost(database: Database, before: set[tuple[RowName, str, str]]) -> None:
    known, there = Log(database), durations(database)
    problems: list[str] = []
    for row, run, duration in before - there:
        assert known.explains(run, row, duration) or known.has_imported(run, row, duration), (row, run, duration)
    counted = Counter(str(each) for each in log.records(database, problems))
    assert not problems
    assert set(counted.values()) == {1}
    kept = Counter(str(each) for each in log.imported(database, problems))
    assert set(kept.values()) <= {1}
    for kernel_type in database.kernel_types():
        names = Counter(database.read(kernel_type).signatures)
        assert set(names.values()) == {1}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    return Undisturbed(tmp_path_factory.mktemp("commands"))


def kill_and_run_again(undisturbed: Undisturbed, seed: int, folder: Path) -> str:
    draws = random.Random(seed)
    command = COMMANDS[seed % len(COMMANDS)]
    database = undisturbed.copy(command, folder / "database")
    before = durations(database)
    known = set(log.runs(database))
    delays = [draws.uniform(0.3, 1) * undisturbed.length_s[command] for _ in range(draws.choice([1, 1, 2]))]
    killed = 0
    for delay in delays:
        running = undisturbed.start(command, database)
        time.sleep(delay)
        running.kill()
        killed += running.wait() == -signal.SIGKILL
        check_nothing_is_lost(database, before)
    half = tables(database) not in (tables(undisturbed.copy(command, folder / "before")), undisturbed.after[command])
    assert undisturbed.start(command, database).wait() == 0
    check_nothing_is_lost(database, before)
    assert known <= set(log.runs(database))
    assert tables(database) == undisturbed.after[command]
    assert not list(database.path.rglob(f".*{TEMPORARY_SUFFIX}"))
    return f"{command} killed {killed} times" + (" with some CSVs written" if half else "")


@pytest.mark.parametrize(
    "seed",
    [FIRST + n if n < FAST else pytest.param(FIRST + n, marks=pytest.mark.slow) for n in range(max(KILLS, FAST))],
)
def test_a_killed_command_that_runs_again_leaves_the_same(undisturbed: Undisturbed, seed: int, tmp_path: Path) -> None:
    print(kill_and_run_again(undisturbed, seed, tmp_path))
