"""Probes in processes of their own: one that hangs or dies of what it touches is a finding."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from opatlas.doctor.probes import Probe
from opatlas.doctor.verdict import (
    State,
    Target,
    Verdict,
    failed,
)
from opatlas.files import TemporaryFolder
from opatlas.isolation.child import describe_exit
from opatlas.isolation.fresh_python import import_environment, module_command

#: What a process has printed last tells most.
_OUTPUT_KEPT = 8000
_ALWAYS = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONFAULTHANDLER": "1"}
#: How often whoever waits is told.
_TELL_EVERY_S = 1.0


@dataclass(frozen=True)
class Result:
    """What became of a probe.

    Attributes:
        took_s: wall time.
        output: the end of what its process printed.
    """

    verdict: Verdict
    took_s: float
    output: str


def _nothing(seconds: float, last_line: str) -> None:
    pass


def run_probe(probe: Probe, target: Target, waiting: Callable[[float, str], None] = _nothing) -> Result:
    """Runs a probe in a child process, which is ended at the probe's deadline with all that it has started.

    Args:
        waiting: told every second how many seconds the probe has taken, and what its process has printed last.
    """
    started = time.monotonic()
    with TemporaryFolder("doctor") as folder, tempfile.TemporaryFile() as output:
        verdict_file = folder / "verdict.json"
        process = subprocess.Popen(
            module_command(
                "opatlas.doctor.child", probe.function.__module__, probe.name, target.to_json(), str(verdict_file)
            ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=import_environment() | (dict(target.environment) if probe.as_device_process else {}) | _ALWAYS,
            start_new_session=True,
        )
        ended = f"did not end within {probe.deadline_s:g} s"
        try:
            while (left_s := started + probe.deadline_s - time.monotonic()) > 0:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(min(left_s, _TELL_EVERY_S))
                    ended = f"ended: {describe_exit(process.returncode)}"
                    break
                waiting(time.monotonic() - started, _last_printed(output))
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        printed = _end_of(output)
        verdict = _read(verdict_file) or failed(
            f"the probe's process {ended}", "send us the report (--report), which has what it printed"
        )
    return Result(verdict, time.monotonic() - started, printed)


def _end_of(output: IO[bytes]) -> str:
    """Returns the end of what a process has printed; the place at which the process writes stays the same."""
    size = os.fstat(output.fileno()).st_size
    return os.pread(output.fileno(), _OUTPUT_KEPT, max(size - _OUTPUT_KEPT, 0)).decode(errors="replace")


def _last_printed(output: IO[bytes]) -> str:
    """Returns the last line that a process has printed; "" if there is none."""
    return next((line.strip() for line in reversed(_end_of(output).splitlines()) if line.strip()), "")


def _read(path: Path) -> Verdict | None:
    """None where the process has not come to write it."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return Verdict(State(values["state"]), values["detail"], values["remedy"], values["facts"])
