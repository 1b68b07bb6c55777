"""Runs inputs of a target in processes of their own, and saves every input that finds something.

An input that crashes its worker, hangs it or fills its memory ends that process, and nothing else. A worker prints a
line of JSON for each finding, and one with the number of inputs every now and then.
"""

from __future__ import annotations

import faulthandler
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from opatlas.progress import progress

from .mutation import Mutator
from .target import Target, emptied

ROOT = Path(__file__).parents[2]
#: The default folder for inputs that find something.
FINDINGS = ROOT / ".fuzz"
_MOST_CRASHES = 3
#: Beyond its time: a worker imports the modules of its target, runs the good inputs, and ends itself where one hangs.
_START_S = 300.0
#: The memory that an input of 64 KiB may take beyond that of the process.
_MEMORY_BYTES = 1 << 30
_REPORT_EVERY_S = 0.2
#: Inputs of the same kind of finding are not reported again, and a target with so many kinds is not run on.
_MOST_KINDS = 10


@dataclass(frozen=True)
class Finding:
    """An input for which something does not hold: the kind of failure in a few words, the traceback, the input."""

    target: str
    kind: str
    text: str
    path: Path

    def __str__(self) -> str:
        repeat = f"python -m tests.fuzz {self.target} --repeat {self.path}"
        return f"{self.target}: {self.kind}\n{self.text.rstrip()}\n  repeat: {repeat}"


@dataclass
class Outcome:
    """The result of a target: the number of inputs that were run, and the findings."""

    target: str
    inputs: int
    findings: list[Finding]

    def add(self, kind: str, text: str, data: bytes, folder: Path) -> None:
        """Adds a finding, and saves its input under the name of its contents."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.target.replace(':', '.')}-{blake2b(data, digest_size=4).hexdigest()}"
        path.write_bytes(data)
        self.findings.append(Finding(self.target, kind, text, path))


def fuzz(name: str, seed: int, seconds: float, findings: Path = FINDINGS) -> Outcome:
    """Runs inputs of a target, drawn from a seed, for so many seconds; saves those that find something in a folder."""
    outcome = Outcome(name, 0, [])
    end = time.monotonic() + seconds
    memory = Path("/dev/shm")
    # Every input is written to a file: a disk would set the pace.
    with (
        tempfile.TemporaryDirectory(prefix="opatlas-fuzz-", dir=memory if memory.is_dir() else None) as folder,
        progress(f"{name}, inputs", None) as advance,
    ):
        current = Path(folder) / "input"
        for crashes in range(_MOST_CRASHES):
            left_s = end - time.monotonic()
            if left_s <= 0:
                break
            current.unlink(missing_ok=True)
            options = ["--seed", str(seed + crashes), "--seconds", str(left_s), "--worker", str(current)]
            status, errors = _followed([name, *options], outcome, left_s, advance, findings)
            if status == 0:
                break
            kind = "hangs" if "Timeout (" in errors else f"ends its process ({status})"
            outcome.add(kind, errors, current.read_bytes() if current.exists() else b"", findings)
    return outcome


def _followed(
    arguments: list[str], outcome: Outcome, seconds: float, advance: Callable[[float], None], findings: Path
) -> tuple[int, str]:
    """Reads what a worker tells until it ends; gives its exit status and the end of its stderr."""
    command = [sys.executable, "-m", "tests.fuzz", *arguments]
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True) as worker,
    ):
        assert worker.stdout is not None
        # For a worker that cannot even end itself.
        watchdog = threading.Timer(seconds + _START_S, worker.kill)
        watchdog.start()
        before = 0
        for line in worker.stdout:
            report = json.loads(line)
            if "inputs" in report:
                new, before = report["inputs"] - before, report["inputs"]
                outcome.inputs += new
                advance(new)
            else:
                outcome.add(report["kind"], report["text"], bytes.fromhex(report["input"]), findings)
        status = worker.wait()
        watchdog.cancel()
        errors.seek(0)
        text = errors.read().decode(errors="replace")
        return status, "\n".join(line for line in text.splitlines()[-40:] if not line.startswith("Extension modules"))


def limit_memory() -> None:
    """Makes an input that takes much memory a MemoryError."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))


def check(target: Target, data: bytes, folder: Path) -> None:
    """Checks one input; a hang ends the process with a traceback of where it hangs."""
    faulthandler.dump_traceback_later(target.limit_s, exit=True)
    try:
        target.check(data, folder)
    finally:
        faulthandler.cancel_dump_traceback_later()
        emptied(folder)


def work(target: Target, seed: int, seconds: float, current: Path) -> None:
    """Runs inputs that are drawn from a seed, until the time is up: the body of a worker.

    Args:
        current: a file for the input that is being run, for who sees this process end.
    """
    faulthandler.enable()
    warnings.simplefilter("ignore")
    end = time.monotonic() + seconds
    good = list(target.seeds())
    mutator = Mutator(seed, good, target.words)
    kinds: set[str] = set()
    count, reported = 0, 0.0
    with tempfile.TemporaryDirectory(dir=current.parent) as folder:
        while count < len(good) or (time.monotonic() < end and len(kinds) < _MOST_KINDS):
            if count == len(good):
                # Memory that a target loads for its first inputs does not count for an input.
                limit_memory()
            data = good[count] if count < len(good) else mutator.draw()
            current.write_bytes(data)
            try:
                check(target, data, Path(folder))
            except Exception as error:
                kind = _kind_of(error)
                if kind not in kinds:
                    kinds.add(kind)
                    _report(kind=kind, text=traceback.format_exc(limit=-12), input=data.hex())
            count += 1
            if time.monotonic() - reported > _REPORT_EVERY_S:
                reported = time.monotonic()
                _report(inputs=count)
    _report(inputs=count)


def _kind_of(error: BaseException) -> str:
    """The type of an exception and the line that raised it, which distinguish findings."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "site-packages" not in frame.filename and "/lib/python" not in frame.filename]
    # The line of the target with the expectation counts; of other exceptions the innermost one.
    own = [frame for frame in own if frame.name not in ("expect", "refusing")] or list(frames)
    return f"{type(error).__name__} at {Path(own[-1].filename).name}:{own[-1].lineno}"


def _report(**values: object) -> None:
    sys.__stdout__.write(json.dumps(values) + "\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]
