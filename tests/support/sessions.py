"""Real sessions: pytest in a process of its own, with toy replays, on a database in a temporary folder."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: What the toy kernel types do. `Toy` adds; `Moody` does what its first dimension says.
TOY_REPLAYS = """
import ctypes
import os
import sys
import time

import simulated
from bench import expected, impl
from bench.registry import replays


@replays("Toy", "OtherToy", npu=None)
def test_toy(row, replay):
    print("body of", row.input_slots[0].shape)
    replay(impl.add, *row.inputs(), expected=expected.add)


@replays("Moody", npu=None)
def test_moody(row, replay):
    mood = row.shape(0)[0]
    if mood == 11:
        ctypes.string_at(0)
    if mood == 12:
        os._exit(3)
    if mood == 13:
        time.sleep(1000)
    if mood == 14:
        ctypes.PyDLL(None).sleep(1000)
    if mood == 15:
        raise ValueError("bad mood")
    if mood == 16:
        raise row.refuse("Input Shapes", "a bad mood", "cheer it up")
    if mood == 17:
        raise NotImplementedError("no such mood")
    if mood == 18:
        return
    if mood == 19:
        replay(lambda x, y: x + y + 1, *row.inputs(), expected=expected.add)
    if mood == 20:
        raise MemoryError("too moody")
    if mood == 22:
        time.sleep(3)
    if mood == 23:
        os.abort()
    if mood == 30:
        simulated.poison()
    if mood == 31:
        simulated.break_for_good(simulated.own_id())
        simulated.poison()
    if mood == 32 and simulated.own_id() == "1":
        simulated.break_for_good("1")
        simulated.poison()
    if mood == 21 and os.environ.get("MOOD") != "good":
        raise ValueError("needs MOOD=good")
    replay(impl.add, *row.inputs(), expected=expected.add)
"""

CONFTEST = """
import os

import simulated

pytest_plugins = ("plugins.options", "plugins.workers", "plugins.wiring", "bench.conftest")


def pytest_opatlas_devices():
    present = int(os.environ.get("SIMULATED_DEVICES", "0"))
    return simulated.devices(present) if present else None
"""

HEADER = (
    "OP State",
    "Accelerator Core",
    "Input Shapes",
    "Input Data Types",
    "Input Formats",
    "Output Shapes",
    "Output Data Types",
    "Output Formats",
)


def row(size: int) -> dict[str, str]:
    """A row that adds two vectors."""
    cells = ("dynamic", "AI_VECTOR_CORE", f"{size};{size}", "FLOAT;FLOAT", "ND;ND", f"{size}", "FLOAT", "ND")
    return dict(zip(HEADER, cells, strict=True))


@dataclass(frozen=True)
class Finished:
    """A session that has ended."""

    code: int
    output: str

    def outcomes(self) -> dict[str, int]:
        """What pytest's last line counts, by word."""
        last = self.output.strip().splitlines()[-1]
        return {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", last)}

    def __contains__(self, text: str) -> bool:
        return text in self.output


class Sessions:
    """A folder with toy replays and a database, and a way to run pytest on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "database"
        self.database.mkdir()
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "conftest.py").write_text(CONFTEST)
        for name in ("simulated.py", "simulated_device.py"):
            shutil.copy(Path(__file__).with_name(name), folder)
        (folder / "test_toys.py").write_text(TOY_REPLAYS)

    def write(self, kernel_type: str, rows: list[dict[str, str]]) -> Path:
        path = self.database / f"{kernel_type}.csv"
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        return path

    def read(self, kernel_type: str) -> list[dict[str, str]]:
        with open(self.database / f"{kernel_type}.csv", newline="") as file:
            return list(csv.DictReader(file))

    def statuses(self, kernel_type: str) -> dict[int, str]:
        """Status by the size of the row."""
        return {int(r["Input Shapes"].partition(";")[0]): r.get("Status", "") for r in self.read(kernel_type)}

    def run(
        self, *options: str, measure: tuple[str, ...] = ("--repeat-count=2", "--cache=warm"), **environment: str
    ) -> Finished:
        """`pytest` in the folder; quick measuring unless `measure` says otherwise."""
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-p",
                "no:cacheprovider",
                "-p",
                "no:hypothesispytest",
                f"--database-path={self.database}",
                *measure,
                *options,
            ],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        return Finished(done.returncode, done.stdout)
