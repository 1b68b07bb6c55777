"""Runs a command in a child process and tells what it cost."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from cyclopts import App

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Cost:
    """What a process took.

    Attributes:
        seconds: wall time.
        cpu_s: time on processors, of its children too: other programs change it less than the wall time.
        peak_mb: peak memory, of the process alone.
    """

    seconds: float
    cpu_s: float
    peak_mb: float

    def __str__(self) -> str:
        return f"{self.cpu_s:.2f} s CPU, {self.seconds:.2f} s, {self.peak_mb:.0f} MB"

    @classmethod
    def best(cls, costs: Iterable[Cost]) -> Cost:
        """The smallest of each: what else the machine did is not the program's."""
        costs = list(costs)
        return cls(
            min(cost.seconds for cost in costs), min(cost.cpu_s for cost in costs), min(cost.peak_mb for cost in costs)
        )


def measure(command: Sequence[str], checkout: Path = ROOT) -> Cost:
    """Runs a command in a checkout, its output dropped. Raises CalledProcessError."""
    start = time.perf_counter()
    process = subprocess.Popen(command, cwd=checkout, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, list(command))
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def run_benchmark(main: Callable[..., int]) -> NoReturn:
    """Runs the function of a script, whose parameters are its options, and exits with its status."""
    app = App(help=sys.modules["__main__"].__doc__, help_format="plaintext", result_action="return_value")
    app.default(main)
    sys.exit(app())


def result_of(code: str, *arguments: object) -> Any:
    """Runs code in a Python of its own, and returns the JSON value that it prints. Raises CalledProcessError."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return json.loads(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout)


def run_session(database: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs `pytest bench/` on a database."""
    pytest = [sys.executable, "-m", "pytest", "bench", "-q", "-p", "no:cacheprovider", f"--database-path={database}"]
    return subprocess.run([*pytest, *options], cwd=ROOT, capture_output=True, text=True, check=False)


def apart(function: Callable[..., object], *arguments: object, **named: object) -> None:
    """Calls a function in a process of its own: the peak memory of a child is at least what its parent has used."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments, kwargs=named)
    process.start()
    process.join()
    assert process.exitcode == 0


def load() -> str:
    """Returns how busy the machine is, to be printed with a figure: `load 1.20 of 2 cores`."""
    return f"load {os.getloadavg()[0]:.2f} of {os.cpu_count()} cores"
