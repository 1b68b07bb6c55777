"""Real sessions: pytest in a process of its own, with toy replays, on a database in a temporary folder."""

from __future__ import annotations

import contextlib
import csv
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import warm_python
from captures import cells

ROOT = Path(__file__).parents[2]
#: Marks the processes of a test's sessions.
FOLDER = "OPATLAS_TEST_FOLDER"
QUICKLY = ("--repeat-count=2", "--cache=warm")
#: Deadline of rows that hang on purpose, in seconds: a healthy row takes a thousandth of it.
HANG_S = 8
#: Of this process: below those that a system gives to whoever names none, as other workers do meanwhile.
UNUSED_PORT = 20_000 + os.getpid() % 10_000

#: `Toy` adds; `Moody` does as its first dimension says (moods.py).
TOY_REPLAYS = """
import moods
from opatlas.bench import formulas
from opatlas.bench.implementations import torch as impl
from opatlas.run.registry import replays


@replays("Toy", "OtherToy", npu=None)
def test_toy(row, replay):
    print("body of", row.input_slots[0].shape)
    replay(impl.add, *row.inputs(), expected=formulas.add)


@replays("Moody", npu=None)
def test_moody(row, replay):
    wrong = row.shape(0)[0] == moods.Mood.WRONG_RESULT
    if moods.behave(row):
        replay((lambda x, y: x + y + 1) if wrong else impl.add, *row.inputs(), expected=formulas.add)
"""

CONFTEST = """
import os

import simulated
from opatlas.run.devices.device import pin_devices
from opatlas.run.devices.device import DeviceSpec, kind_named
from opatlas.outer.cluster import dealer
from opatlas.run.process import ranks
from opatlas.run.process import device_process
from opatlas.run import msprof_sessions as sessions

# Exit codes are reported only if a process ends in time: on a loaded machine that takes longer than a user would wait.
ranks.END_TIMEOUT_S = float(os.environ.get("END_TIMEOUT_S", "120"))
# A device that is cut off from its head ends soon.
dealer.LONELY_S = float(os.environ.get("LONELY_S", dealer.LONELY_S))
sessions.SESSION_ROWS = int(os.environ.get("SESSION_ROWS", sessions.SESSION_ROWS))
# No driver resets a simulated device.
device_process.PAUSES_S = (0.1, 0.1)
pytest_plugins = ("opatlas.plugins",)


def pytest_opatlas_devices():
    npus = int(os.environ.get("STAND_IN_NPUS", "0"))
    if npus:
        spec = DeviceSpec("npu", opener="stand_in_npu:StandInNpu")
        return pin_devices(spec, kind_named("npu").visible, [str(index) for index in range(npus)])
    present = int(os.environ.get("SIMULATED_DEVICES", "0"))
    return simulated.devices(present) if present else None
"""


def row(size: int) -> dict[str, str]:
    """A row that adds two vectors."""
    slots = cells(f"{size};{size}", f"{size}", "FLOAT")
    return {"OP State": "dynamic", "Accelerator Core": "AI_VECTOR_CORE", **slots}


HEADER = tuple(row(1))


def write_table(path: Path, rows: Sequence[Mapping[str, str]]) -> Path:
    """Writes rows with the columns of all of them; gives the path."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        columns = dict.fromkeys(name for row in rows for name in row)
        writer = csv.DictWriter(file, list(columns), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


@dataclass(frozen=True)
class Finished:
    """A session that has ended."""

    code: int
    output: str

    def outcomes(self) -> dict[str, int]:
        """The counts of pytest's last line, by word."""
        last = self.output.strip().splitlines()[-1]
        return {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", last)}

    def ledger(self) -> dict[str, int]:
        """The terms of the ledger, whose sum must be the collection."""
        (line,) = re.findall(r"^(\d+) (?:row|message|case)s? collected = (.+)$", self.output, flags=re.MULTILINE)
        terms = {name: int(count) for count, name in (term.split(" ", 1) for term in line[1].split(" + "))}
        assert sum(terms.values()) == int(line[0]), line
        return terms

    def numbers(self, mark: str) -> list[int]:
        """The numbers in the only line that contains a text, such as the option that the line is about."""
        (line,) = (line for line in self.output.splitlines() if mark in line)
        return [int(number) for number in re.findall(r"(?<![\w.])\d+(?![\w.])", line)]

    def __contains__(self, text: str) -> bool:
        return text in self.output

    def has_line(self, *words: object) -> bool:
        """Whether a line of the output has all these words."""
        return any(all(str(word) in line for word in words) for line in self.output.splitlines())


class Sessions:
    """A folder with toy replays and a database, and a way to run pytest on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "database"
        self.database.mkdir()
        #: For temporary files: rows take turns with those of other sessions by a lock in there. No longer than
        #: the name of a socket may be.
        self.temporary = Path(tempfile.mkdtemp(prefix="opatlas-test-"))
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "conftest.py").write_text(CONFTEST)
        for name in ("moods.py", "simulated.py", "simulated_device.py", "stand_in_npu.py", "stand_in_msprof.py"):
            shutil.copy(Path(__file__).with_name(name), folder)
        (folder / "test_toys.py").write_text(TOY_REPLAYS)
        self._started = 0

    def write(self, kernel_type: str, rows: list[dict[str, str]]) -> Path:
        return write_table(self.database / f"{kernel_type}.csv", rows)

    def read(self, kernel_type: str) -> list[dict[str, str]]:
        with open(self.database / f"{kernel_type}.csv", newline="") as file:
            return list(csv.DictReader(file))

    @property
    def beside_captures(self) -> Path:
        """Where the rows of a database of captures were measured on another device."""
        (found,) = self.folder.glob(f"{self.database.name}-replays/*/*/*")
        return found

    def statuses(self, kernel_type: str) -> dict[int, str]:
        """Status by the size of the row."""
        return {int(r["Input Shapes"].partition(";")[0]): r.get("Status", "") for r in self.read(kernel_type)}

    def run(
        self, *options: str, measure: Sequence[str] = QUICKLY, file_limit: int | None = None, **environment: str
    ) -> Finished:
        """`pytest` in the folder, to its end; quick measuring unless `measure` says otherwise.

        Args:
            file_limit: bytes beyond which the system lets no file grow.
        """
        return self._start(warm_python.Popen, options, measure, environment, file_limit=file_limit).wait()

    def run_in_process(self, *options: str, measure: Sequence[str] = QUICKLY, **environment: str) -> Finished:
        """The same with `--in-process`, for tests in which the device process does not matter."""
        return self.start_in_process(*options, measure=measure, **environment).wait()

    def start_in_process(self, *options: str, measure: Sequence[str] = QUICKLY, **environment: str) -> Running:
        """The same as `run_in_process`, left to run."""
        return self._start(warm_python.Popen, ("--in-process", *options), measure, environment)

    def start(
        self,
        *options: str,
        measure: Sequence[str] = QUICKLY,
        terminal: int | None = None,
        alone: bool = False,
        **environment: str,
    ) -> Running:
        """The same as `run`, left to run.

        Args:
            terminal: a descriptor that takes its output.
            alone: each process is a new Python, as a user's are, and no fork.
        """
        popen = subprocess.Popen if alone else warm_python.Popen
        return self._start(popen, options, measure, environment, stdout=terminal)

    def _start(
        self,
        popen: Callable[..., subprocess.Popen[bytes]],
        options: Sequence[str],
        measure: Sequence[str],
        environment: Mapping[str, str],
        *,
        stdout: int | None = None,
        **more: Any,
    ) -> Running:
        output = self._new_output()
        with open(output, "w") as file:
            process = popen(
                [sys.executable, "-m", "pytest", *self._arguments(measure, options), *options],
                cwd=self.folder,
                env=self._environment(environment),
                stdin=subprocess.DEVNULL,
                stdout=file if stdout is None else stdout,
                stderr=subprocess.STDOUT,
                **more,
            )
        return Running(self, process, output)

    def _arguments(self, measure: Sequence[str], options: Sequence[str]) -> list[str]:
        # Plugins of others that happen to be installed, each of which costs every process of a session. That of
        # benchmarks runs git.
        names = ["cacheprovider", "hypothesispytest", "anyio"]
        names += [] if any("benchmark" in word for word in options) else ["benchmark"]
        without = [word for name in names for word in ("-p", f"no:{name}")]
        return [*without, f"--database-path={self.database}", *measure]

    def _environment(self, more: Mapping[str, str]) -> dict[str, str]:
        return {
            **_environment(),
            "PYTHONPATH": str(ROOT),
            FOLDER: str(self.folder),
            "TMPDIR": str(self.temporary),
            **more,
        }

    def _new_output(self) -> Path:
        self._started += 1
        output = self.folder / f"output-{self._started}.txt"
        output.touch()
        return output

    def go(self) -> None:
        """Lets the rows end that wait for it."""
        (self.folder / "go").touch()

    def records(self) -> int:
        """How many records the journals hold."""
        return sum(max(p.read_bytes().count(b"\n") - 1, 0) for p in (self.database / "journal").glob("*.jsonl"))

    def processes(self) -> list[int]:
        """Those that run on behalf of this folder's sessions."""
        mine = f"{FOLDER}={self.folder}".encode()
        found = []
        for directory in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mine in (directory / "environ").read_bytes().split(b"\0"):
                    found.append(int(directory.name))
        return found

    def end(self) -> None:
        """Kills whatever a failed test has left running, and removes temporary files."""
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.temporary, ignore_errors=True)

    def left_behind(self) -> list[int]:
        """Processes that are still there some time after their session has ended."""
        wait_for(lambda: not self.processes(), seconds=300)
        return self.processes()


class Running:
    """A session that was started."""

    def __init__(self, sessions: Sessions, process: subprocess.Popen[bytes], output: Path) -> None:
        self._sessions = sessions
        self.process = process
        self.output = output

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Until a condition is true, which it is to be before the session ends."""
        wait_for(lambda: condition() or self.process.poll() is not None, seconds=300)
        assert condition(), self.output.read_text()

    def wait_for_records(self, count: int) -> None:
        self.wait_until(lambda: self._sessions.records() >= count)

    def wait_for_body(self, mood: int) -> None:
        """Until the row of that mood runs."""
        self.wait_until((self._sessions.folder / f"body-{mood}").exists)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 300) -> Finished:
        """Until it ends; ends it where it does not."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"still running after {seconds} s: {self.output.read_text()}") from None
        return Finished(self.process.returncode, self.output.read_text())


def _environment() -> dict[str, str]:
    """This process's, without the variables of a worker of xdist: the session is not a worker."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}


def wait_for(condition: Callable[[], bool], seconds: float = 300) -> bool:
    """Whether a condition came true in time."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True
