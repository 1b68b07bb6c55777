"""Judges one candidate in this process, as a session does; public_kernels.py starts it.

    python -m tests.benchmarks.kernel_trial TASK CANDIDATE [--timed LOCK]

The last line on stdout is the Judgement as JSON. Without --timed three samples are taken, beside whatever else runs on
the device, and no duration is kept. With --timed the candidate and the task's Model are measured while no other process
holds the file LOCK.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import torch

from opatlas.errors import OpAtlasError
from opatlas.outer.judging.judgement import ErrorClass, Judgement, Level
from opatlas.outer.tasks.candidate_files import find_candidates
from opatlas.outer.tasks.task import read_tasks
from opatlas.outer.tasks.task_replay import bind
from opatlas.row.columns import BASE, TASK_INPUTS
from opatlas.row.errors import ReplayError
from opatlas.run.devices.device import DeviceSpec, open_device
from opatlas.run.devices.fatal_errors import is_out_of_memory
from opatlas.run.group import ALONE
from opatlas.run.implementations.directory import read_directory
from opatlas.run.implementations.implementation import KernelSource
from opatlas.run.instruments.instrument import Instrument, MeasureSettings, Rule, Samples
from opatlas.run.job import Job, RowOutcome
from opatlas.text import exception_line

_SAMPLES, _FEW, _LIMIT_S = 30, 3, 10.0


class _InstrumentAlone:
    """An instrument that takes samples while no other process with the same lock does."""

    def __init__(self, instrument: Instrument, lock: Path) -> None:
        self.name = instrument.name
        self._instrument = instrument
        self._lock = lock

    def sample(self, call: Callable[[], object], before_each: Callable[[], None] | None, rule: Rule) -> Samples:
        with self._lock.open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            return self._instrument.sample(call, before_each, rule)


def judge(task_path: Path, path: Path, lock: Path | None) -> Judgement:
    """Returns the judgement of a candidate.

    Raises:
        ReplayError: the task itself cannot be run.
        OpAtlasError: there is no such task, candidate or device.
    """
    [task] = read_tasks(task_path)
    [implementation] = read_directory(path, find_candidates([task]))
    settings = MeasureSettings(repeat_count=_SAMPLES if lock else _FEW, time_limit_s=_LIMIT_S)
    device = open_device(DeviceSpec("cuda" if torch.cuda.is_available() else "cpu"), settings)
    instrument = _InstrumentAlone(device.instrument(), lock) if lock else device.instrument()
    cells = {**dict.fromkeys(BASE, ""), TASK_INPUTS: "0"}

    def outcome(source: KernelSource | None) -> RowOutcome:
        job = Job(
            "opatlas.bench.test_tasks", "", "test_task", task.kernel_type, cells, 0.0, source=source, subject=task
        )
        _, replay = bind(job, device, instrument, settings, ALONE)
        with torch.no_grad(), replay.bounded_memory():
            replay()
        found: RowOutcome = replay.outcome
        return found

    found = outcome(implementation.sources[task.kernel_type])
    judgement = Judgement.of(found)
    if judgement is None:
        return Judgement(ErrorClass.RUNTIME, "not measured", Level.CORRECT, found.reason)
    if not judgement.passed:
        return judgement
    if lock is None:
        return replace(judgement, level=Level.CORRECT, duration_us=None)
    measured = outcome(None).measurement
    return replace(judgement, baseline_us=measured.summary.median_us if measured else None)


def main() -> None:
    """Prints the judgement, and ends the process at once, whatever threads and destructors there are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", type=Path)
    parser.add_argument("candidate", type=Path)
    parser.add_argument("--timed", type=Path, metavar="LOCK", help="measure, alone among those with the same LOCK")
    given = parser.parse_args()
    answers = os.dup(1)
    os.dup2(2, 1)
    try:
        found = judge(given.task, given.candidate, given.timed)
    except OpAtlasError as error:
        if is_out_of_memory(str(error)):
            # Other processes have taken it.
            found = Judgement(ErrorClass.OOM, "", Level.STATIC, exception_line(error))
        elif isinstance(error, ReplayError):
            found = Judgement(ErrorClass.RUNTIME, "task", Level.STATIC, exception_line(error))
        else:
            found = Judgement(ErrorClass.INTERFACE, "function", Level.STATIC, exception_line(error))
    os.write(answers, f"\n{json.dumps(asdict(found))}\n".encode())
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
