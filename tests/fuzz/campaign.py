"""Runs a target for some time, in processes of its own, and saves every input that finds something."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from opatlas.progress import progress

ROOT = Path(__file__).parents[2]
#: The default folder for inputs that find something.
FINDINGS = ROOT / ".fuzz"
_MOST_CRASHES = 3
#: Beyond its time: a worker imports the modules of its target, runs the good inputs, and ends itself where one hangs.
_START_S = 300.0


@dataclass(frozen=True)
class Finding:
    """An input for which something does not hold.

    Attributes:
        kind: of the failure, in a few words.
        text: the traceback.
        path: the input.
    """

    target: str
    kind: str
    text: str
    path: Path

    def __str__(self) -> str:
        return f"{self.target}: {self.kind}\n{self.text.rstrip()}\n  repeat: {repeat_command(self.target, self.path)}"


@dataclass
class Outcome:
    """The result of a target: the number of inputs that were run, and the findings."""

    target: str
    inputs: int
    findings: list[Finding]


def repeat_command(target: str, path: Path) -> str:
    """The command that runs one input again."""
    return f"python -m tests.fuzz {target} --repeat {path}"


def save(target: str, data: bytes, folder: Path) -> Path:
    """Saves an input under the name of its contents."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{target.replace(':', '.')}-{blake2b(data, digest_size=4).hexdigest()}"
    path.write_bytes(data)
    return path


def fuzz(name: str, seed: int, seconds: float, findings: Path = FINDINGS) -> Outcome:
    """Runs inputs of a target for so many seconds.

    Args:
        seed: of the inputs.
        findings: the folder for inputs that find something.
    """
    outcome = Outcome(name, 0, [])
    end = time.monotonic() + seconds
    crashes = 0
    memory = Path("/dev/shm")
    # Every input is written to a file: a disk would set the pace.
    with (
        tempfile.TemporaryDirectory(prefix="opatlas-fuzz-", dir=memory if memory.is_dir() else None) as folder,
        progress(f"{name}, inputs", None) as advance,
    ):
        current = Path(folder) / "input"
        while (left_s := end - time.monotonic()) > 0 and crashes < _MOST_CRASHES:
            current.unlink(missing_ok=True)
            command = _worker(name, seed + crashes, left_s, current)
            status, errors = _followed(command, outcome, end, advance, findings)
            if status == 0:
                break
            crashes += 1
            data = current.read_bytes() if current.exists() else b""
            kind = "hangs" if "Timeout (" in errors else f"ends its process ({status})"
            outcome.findings.append(Finding(name, kind, errors, save(name, data, findings)))
    return outcome


def _worker(target: str, seed: int, seconds: float, current: Path) -> list[str]:
    arguments = ["--seed", str(seed), "--seconds", str(seconds), "--worker", str(current)]
    return [sys.executable, "-m", "tests.fuzz", target, *arguments]


def _followed(
    command: list[str], outcome: Outcome, end: float, advance: Callable[[float], None], findings: Path
) -> tuple[int, str]:
    """Reads what a worker tells until it ends; gives its exit status and the end of its stderr."""
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True) as worker,
    ):
        assert worker.stdout is not None
        # For a worker that cannot even end itself.
        watchdog = threading.Timer(max(end - time.monotonic(), 0) + _START_S, worker.kill)
        watchdog.start()
        before = 0
        for line in worker.stdout:
            if not line.startswith("{"):
                # libFuzzer has things to say, too.
                continue
            report = json.loads(line)
            if "inputs" in report:
                new, before = report["inputs"] - before, report["inputs"]
                outcome.inputs += new
                advance(new)
            else:
                path = save(outcome.target, bytes.fromhex(report["input"]), findings)
                outcome.findings.append(Finding(outcome.target, report["kind"], report["text"], path))
        status = worker.wait()
        watchdog.cancel()
        errors.seek(0)
        text = errors.read().decode(errors="replace")
        return status, "\n".join(line for line in text.splitlines()[-40:] if not line.startswith("Extension modules"))
