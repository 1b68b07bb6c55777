"""Runs a session of a folder: the steps of `session.yaml`, on a copy of `input/`; and what came out, as plain data."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import warm_python
from sessions import QUICKLY, ROOT, Sessions, row, write_table
from stand_in_npu_plugin import NAME
from stand_in_npus import StandInNpus

#: Cells and values whose numbers differ each time, and those that hold sentences, which are free to be worded anew.
_MEASURED = re.compile(
    r"^((Average )?Duration|MicroBench (Median|Min|Max|Std|Rank|aic)|Span Median|Set-up|Pooled|Max |Host |Quality"
    r"|Control |Checked|Baseline|Speed|(bus_)?bandwidth)"
)
_SENTENCE = re.compile(
    r"reason|note|message|text|remedy|headline|detail|log|advice|assumption|problem|warning|summary", re.I
)
#: Names of machines, versions and files of code, which differ between machines.
_MACHINE = re.compile(
    r"version|python|torch|host|machine|commit|path|folder|started|finished|date|cores|threads|digest", re.I
)
_RUN = re.compile(r"\b(ingest-)?\d{8}T\d{6}Z?-[0-9a-f]{6}\b")
_VERSION = re.compile(r"\b\d+(\.\d+)+(\+\w+)?\b")
#: The version in the folder of a database.
_TORCH = re.compile(r"torch\d[\d.]*")
_NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]\d+)?")
_SIGNIFICANT = 3
#: Sessions measure on the CPU, or on stand-ins, on machines with GPUs too.
_NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


class Step(msgspec.Struct, forbid_unknown_fields=True):
    """One command. Exactly one of the first five says which.

    Attributes:
        toys: options of `pytest` in a folder with the replays of tests/support/sessions.py.
        bench: options of `pytest bench/` of this checkout, or of the files of it that they name.
        own: words of `pytest` in the folder itself: a project of somebody else.
        opatlas: words of a command.
        python: a program; what it prints is JSON.
        environment: further variables.
        npus: the stand-in NPUs of a session of toys or of bench, under the stand-in msprof; 0: the CPU.
        kill_after: kills the session of toys with SIGKILL when so many records are on disk.
        alone: whether a program runs in a new Python, and not in a fork of one that has imported torch.
        prints_json: whether the command prints JSON.
    """

    toys: list[str] | None = None
    bench: list[str] | None = None
    own: list[str] | None = None
    opatlas: list[str] | None = None
    python: str | None = None
    environment: dict[str, str] = {}
    npus: int = 0
    kill_after: int | None = None
    alone: bool = False
    prints_json: bool = False


class Plan(msgspec.Struct, forbid_unknown_fields=True):
    """What `session.yaml` holds.

    Attributes:
        promise: the sentence of README.md that the session holds.
        inputs: folders of `inputs/` that are copied into the session's folder, besides its own `input/`.
        rows: by kernel type, the lengths of the vectors of rows of toys (moods.py).
        exact: whether the numbers are the same each time: nothing is measured.
        tables: the CSVs that are compared, as patterns.
        files: further files that have to exist, as patterns.
        any_run: whether it is chance which run has a duration.
        slow: whether the session runs with `make test-slow` only.
    """

    promise: str
    steps: list[Step]
    inputs: list[str] = []
    rows: dict[str, list[int]] = {}
    exact: bool = False
    tables: list[str] = msgspec.field(default_factory=lambda: ["database/*.csv", "database/pruned/*.csv"])
    files: list[str] = []
    any_run: bool = False
    slow: bool = False


def read_plan(folder: Path) -> Plan:
    """Returns the plan of a session's folder. Raises msgspec.ValidationError with the name of a wrong key."""
    return msgspec.yaml.decode((folder / "session.yaml").read_bytes(), type=Plan)


@dataclass
class Acceptance:
    """A session that runs in a folder of its own.

    Attributes:
        plan: what runs.
        sessions: the folder, with the replays of toys.
    """

    plan: Plan
    sessions: Sessions
    _runs: dict[str, str] = field(default_factory=dict)
    _devices: set[str] = field(default_factory=set)
    _output: list[str] = field(default_factory=list)

    @property
    def output(self) -> str:
        """What all commands printed, for the message of a failed test."""
        return "\n".join(self._output)

    def run(self) -> dict[str, Any]:
        """Runs all steps, and returns what came out."""
        for kernel_type, sizes in self.plan.rows.items():
            write_table(self.sessions.database / f"{kernel_type}.csv", [row(size) for size in sizes])
        steps = [self._run(number, step) for number, step in enumerate(self.plan.steps, 1)]
        found: dict[str, Any] = {"steps": steps, "tables": dict(self._tables())}
        if self.plan.files:
            files = {path for pattern in self.plan.files for path in self.sessions.folder.glob(pattern)}
            found["files"] = sorted({self._stable(str(path.relative_to(self.sessions.folder))) for path in files})
        return found

    def _run(self, number: int, step: Step) -> dict[str, Any]:
        folder = self.sessions.folder
        junit = folder / f"junit-{number}.xml"
        if step.toys is not None:
            result = self._run_toys(step, [*step.toys, f"--junitxml={junit}"])
        elif step.bench is not None:
            everything = [] if "".join(step.bench[:1]).startswith("bench/") else ["bench/"]
            words = ["-m", "pytest", *everything, "-p", "no:cacheprovider", f"--junitxml={junit}", *step.bench]
            on_npus = ["-p", "stand_in_npu_plugin", f"--device={NAME}"] if step.npus else []
            result = self._run_python([*words, *on_npus], step, ROOT)
        elif step.own is not None:
            result = self._run_python(["-m", "pytest", f"--junitxml={junit}", *step.own], step, folder)
        elif step.opatlas is not None:
            result = self._run_python(["-m", "opatlas", *step.opatlas], step, folder)
        else:
            assert step.python is not None
            result = self._run_python(["-c", step.python], step, folder)
        code, printed, errors = result
        self._devices = self._devices_of_runs()
        self._output.append(f"--- step {number}: exit {code}\n{printed}{errors}")
        found: dict[str, Any] = {"exit": code}
        if junit.exists() and not self._is_killed:
            found["junit"] = dict(_junit_cases(junit))
        if step.prints_json:
            found["json"] = self._plain("", json.loads(printed)) if code in (0, 1) and printed else printed
        return found

    def _run_toys(self, step: Step, options: Sequence[str]) -> tuple[int, str, str]:
        options = [self._filled(word) for word in options]
        environment = {**_NO_GPU, **self._environment(step)}
        left = set(self._journals())
        if step.npus:
            running = self._npus.start(*options, npus=step.npus, **environment)
        else:
            measure = () if any(word.startswith("--prof-path") for word in options) else QUICKLY
            running = self.sessions.start(*options, measure=measure, **environment)
        if step.kill_after is not None:
            most = step.kill_after
            running.wait_until(lambda: self._records(left) >= most)
            running.send(signal.SIGKILL)
        ended = running.wait()
        assert not self.sessions.left_behind(), ended.output
        return ended.code, ended.output, ""

    def _journals(self) -> Iterator[Path]:
        return (self.sessions.database / "journal").glob("*.jsonl")

    def _records(self, left: Set[Path]) -> int:
        """The records of journals that earlier sessions did not leave."""
        return sum(max(path.read_bytes().count(b"\n") - 1, 0) for path in set(self._journals()) - left)

    def _run_python(self, words: Sequence[str], step: Step, cwd: Path) -> tuple[int, str, str]:
        home = self.sessions.folder
        outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
        environment = {
            **outside,
            **_NO_GPU,
            "TMPDIR": str(self.sessions.temporary),
            "XDG_DATA_HOME": str(home / "data-home"),
        }
        if step.own is None:
            environment["PYTHONPATH"] = str(ROOT)
        if step.npus:
            support = f"{ROOT}{os.pathsep}{ROOT / 'tests' / 'support'}"
            environment |= {**self._npus.environment, "STAND_IN_NPUS": str(step.npus), "PYTHONPATH": support}
        popen = subprocess.Popen if step.alone else warm_python.Popen
        process = popen(
            [sys.executable, *map(self._filled, words)],
            cwd=cwd,
            env={**environment, **self._environment(step)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        printed, errors = process.communicate(timeout=600)
        return process.returncode, printed, errors

    @cached_property
    def _npus(self) -> StandInNpus:
        return StandInNpus(self.sessions)

    def _environment(self, step: Step) -> dict[str, str]:
        return {name: self._filled(value) for name, value in step.environment.items()}

    def _filled(self, word: str) -> str:
        return word.replace("{folder}", str(self.sessions.folder)).replace("{checkout}", str(ROOT))

    def _tables(self) -> Iterator[tuple[str, list[dict[str, str]]]]:
        folder = self.sessions.folder
        for path in sorted({path for pattern in self.plan.tables for path in folder.glob(pattern)}):
            with open(path, newline="") as file:
                rows = [self._cells(each) for each in csv.DictReader(file)]
            yield _TORCH.sub("torch<version>", self._stable(str(path.relative_to(folder)))), rows

    def _cells(self, cells: Mapping[str, str]) -> dict[str, str]:
        """The cells that are not empty: an empty one is as good as none. Noise depends on the machine."""
        # Whether a CPU has instructions for BF16 decides which operators a product is made of.
        left_out = ("Quality Reason", "Stand-In")
        return {name: self._cell(name, cell) for name, cell in cells.items() if cell and name not in left_out}

    def _cell(self, name: str, cell: str) -> str:
        if _SENTENCE.search(name):
            return "<text>"
        if not self.plan.exact and _MEASURED.match(name):
            return "<measured>"
        return self._stable(cell)

    def _stable(self, text: str) -> str:
        """Text without what differs between runs and machines."""
        for folder, word in ((self.sessions.folder, "<folder>"), (ROOT, "<checkout>")):
            text = text.replace(str(folder), word)
        for device in self._devices:
            text = text.replace(device, "<device>")
        text = text.replace(socket.gethostname(), "<host>")
        text = _RUN.sub(self._run_name, text)
        return text if _NUMBER.fullmatch(text) else _VERSION.sub("<version>", text)

    def _run_name(self, match: re.Match[str]) -> str:
        """Runs by the order in which they are found; which row a killed run had is chance."""
        if self._is_killed or self.plan.any_run:
            return "<run>"
        return self._runs.setdefault(match[0], f"<run {len(self._runs) + 1}>")

    @property
    def _is_killed(self) -> bool:
        return any(step.kill_after is not None for step in self.plan.steps)

    def _devices_of_runs(self) -> set[str]:
        """The names that sessions of this machine's CPU gave it."""
        names = set()
        for path in self.sessions.folder.glob("**/runs/*.json"):
            device = json.loads(path.read_text()).get("device")
            if isinstance(device, dict) and device.get("kind") == "cpu" and device.get("name"):
                names.add(device["name"])
        return names

    def _plain(self, key: str, value: Any) -> Any:
        """JSON without what differs between runs and machines."""
        if isinstance(value, Mapping):
            return {self._stable(name): self._plain(name, each) for name, each in value.items()}
        if isinstance(value, list):
            return [self._plain(key, each) for each in value]
        if value is None or isinstance(value, bool) or value == "":
            return value
        if _SENTENCE.search(key):
            return "<text>"
        if _MACHINE.search(key):
            return "<machine>"
        if isinstance(value, float):
            return float(f"{value:.{_SIGNIFICANT}g}") if self.plan.exact else "<measured>"
        return self._stable(value) if isinstance(value, str) else value


def _junit_cases(path: Path) -> Iterator[tuple[str, str]]:
    """The name of each case, and its status with its type."""
    for case in ElementTree.parse(path).iter("testcase"):
        found = [each for each in case if each.tag in ("failure", "error", "skipped")]
        status = " ".join(filter(None, (found[0].tag, found[0].get("type")))) if found else "passed"
        yield case.get("name", ""), status
