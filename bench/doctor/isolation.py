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

from bench.doctor.probes import Probe
from bench.doctor.verdict import State, Target, Verdict, failed
from bench.processes.child import how_it_ended
from bench.processes.fresh_python import import_environment, module_command
from database.temporary import TemporaryFolder

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


def _nothing(seconds: float) -> None:
    pass


def run_probe(probe: Probe, target: Target, waiting: Callable[[float], None] = _nothing) -> Result:
    """Runs a probe in a child process, which is ended at the probe's deadline with all that it has started.

    Args:
        waiting: told every second how many seconds the probe has taken.
    """
    started = time.monotonic()
    with TemporaryFolder("doctor") as folder, tempfile.TemporaryFile() as output:
        verdict_file = folder / "verdict.json"
        process = subprocess.Popen(
            module_command(
                "bench.doctor.child", probe.function.__module__, probe.name, target.to_json(), str(verdict_file)
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
                    ended = f"ended: {how_it_ended(process.returncode)}"
                    break
                waiting(time.monotonic() - started)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(max(output.seek(0, os.SEEK_END) - _OUTPUT_KEPT, 0))
        printed = output.read().decode(errors="replace")
        verdict = _read(verdict_file) or failed(
            f"the probe's process {ended}", "send us the report (--report), which has what it printed"
        )
    return Result(verdict, time.monotonic() - started, printed)


def _read(path: Path) -> Verdict | None:
    """None where the process has not come to write it."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return Verdict(State(values["state"]), values["detail"], values["remedy"], values["facts"])
