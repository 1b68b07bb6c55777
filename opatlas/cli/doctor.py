"""`opatlas doctor`: whether this machine can measure rows.

Each probe runs in a process of its own with a deadline: a library that hangs, or kills its process, is a finding, too.
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from opatlas import formats
from opatlas.files import TemporaryFolder
from opatlas.outer.doctor.ascend import signs_of_ascend
from opatlas.outer.doctor.probe import Probe, ProbeResult, State, Target, run_probe, skipped
from opatlas.outer.doctor.probes import PROBES
from opatlas.outer.doctor.report import expect_report, write_report
from opatlas.progress import note_after, track
from opatlas.run.devices.device import device_kinds, kind_named
from opatlas.show.result import Fields, Part, Result, Table

_FORMAT = 2
#: Variables that change what devices, their libraries and OpAtlas do, by the beginning of their names.
_VARIABLES = (
    *("ASCEND", "ATB_", "CANN", "CUDA", "HCCL", "LD_", "MKL_", "MSMODELING", "NPU_", "NVIDIA", "OMP_", "OPATLAS"),
    *("OPP_", "PATH", "PROFILING", "PYTEST", "PYTHON", "RANK_", "TASK_QUEUE", "TMPDIR", "TORCH", "VLLM", "WORLD_SIZE"),
)
#: Words in the names of variables that may hold a password: the report has no values of such variables.
_SECRET = ("KEY", "TOKEN", "SECRET", "PASS", "PWD", "AUTH", "CREDENTIAL")
_SECRET_VALUE = "(left out)"
_NO_ASCEND = "no sign of an Ascend NPU: its steps are skipped"
#: A probe that takes longer is named on stderr while it runs.
_TOLD_AFTER_S = 5.0
_WARN = "warn"


def doctor(
    *, device: str = "", database_path: Path | None = None, report: Path | None = None, group: bool = False
) -> Result:
    """Examines what this machine offers for measuring: each step passes, fails, warns or is skipped.

    Exit status: 0 everything that the device needs passes; 1 something that it needs fails, or the report cannot be
    written; 2 wrong usage.

    Args:
        device: as in `pytest bench/` (default: the device at hand).
        database_path: folder of the {KernelType}.csv files (default: that of the device and versions).
        report: write all findings into a zip file to send to us, with the last run and the kept profiles of
            --database-path if that is given.
        group: let two ranks meet over HCCL, NCCL or Gloo, and check and measure an all_reduce.
    """
    if report is not None:
        expect_report(report)
    signs = signs_of_ascend()
    with TemporaryFolder("doctor-files") as files:
        kind = device if device in device_kinds() else ""
        target, results = _examine(Target(device, kind, database_path, group, files=files), signs)
        states = {name: _state(PROBES[name], result, target) for name, result in results.items()}
        found = _as_json(target, signs, results)
        counts = Counter(states.values())
        parts: list[Part] = [
            Table(("step", "status", "found", "remedy"), list(_rows(results, states))),
            Fields({"device": target.kind or "not known"}),
            Fields({state: counts[state] for state in (*map(str, State), _WARN) if counts[state]}),
        ]
        if report is not None:
            parts.append(_write(report, target, found))
    return Result(parts, json=found, status=1 if counts[State.FAIL] else 0)


def _examine(target: Target, signs: Sequence[str]) -> tuple[Target, dict[str, ProbeResult]]:
    """Runs the probes. Returns the target, with the kind of device that was found, too."""
    results: dict[str, ProbeResult] = {}
    device_is_there = True
    for probe in track(list(PROBES.values()), "doctor, steps"):
        if probe.of_ascend and not signs and not kind_named(target.kind).is_native:
            why_skipped = _NO_ASCEND
        elif not device_is_there and (probe.of_device or (probe.of_database and target.database is None)):
            why_skipped = "no device"
        elif probe.requires and results[probe.requires].verdict.state is not State.PASS:
            why_skipped = f"{probe.requires} has to pass first"
        else:
            why_skipped = ""
        if why_skipped:
            results[probe.name] = ProbeResult(skipped(why_skipped), 0.0, "")
            continue
        with note_after(f"{probe.name}: at most {formats.seconds(probe.deadline_s)}", _TOLD_AFTER_S):
            results[probe.name] = run_probe(probe, _with_folder(target, probe))
        if probe.name == "device":
            found = results[probe.name].verdict
            device_is_there = found.state is State.PASS
            environment = found.facts.get("environment")
            target = replace(
                target,
                kind=str(found.facts.get("kind", target.kind)),
                environment=environment if isinstance(environment, dict) else {},
            )
    return target, results


def _with_folder(target: Target, probe: Probe) -> Target:
    """Returns the target with a new folder for the files of a probe."""
    assert target.files is not None
    files = target.files / probe.name
    files.mkdir()
    return replace(target, files=files)


def _state(probe: Probe, result: ProbeResult, target: Target) -> str:
    """Returns the state of a probe: "warn" for a failure that the device does not need mended."""
    needed = target.kind in probe.needed_by if target.kind else len(probe.needed_by) > 1
    return _WARN if result.verdict.state is State.FAIL and not needed else str(result.verdict.state)


def _rows(results: Mapping[str, ProbeResult], states: Mapping[str, str]) -> Iterator[tuple[str, str, str, str]]:
    told = False
    for name, result in results.items():
        verdict = result.verdict
        # One row stands for all probes of NPUs.
        if verdict.detail != _NO_ASCEND or not told:
            remedy = "" if verdict.state is State.PASS else verdict.remedy
            yield name, states[name], verdict.detail, remedy
        told |= verdict.detail == _NO_ASCEND


def _as_json(target: Target, signs: Sequence[str], results: Mapping[str, ProbeResult]) -> dict[str, Any]:
    """Returns all findings, with the variables of the environment that change what devices do."""
    return {
        "format": _FORMAT,
        "at": time.time(),
        "host": platform.node(),
        "device": target.device,
        "kind": target.kind,
        "signs_of_ascend": signs,
        "environment": {
            name: _SECRET_VALUE if any(word in name.upper() for word in _SECRET) else value
            for name, value in sorted(os.environ.items())
            if name.startswith(_VARIABLES)
        },
        "probes": [
            {"name": name, "needed": target.kind in PROBES[name].needed_by, "seconds": result.took_s}
            | asdict(result.verdict)
            | {"output": result.output}
            for name, result in results.items()
        ],
    }


def _write(path: Path, target: Target, found: Mapping[str, Any]) -> Fields:
    """Writes the report, and returns what it holds, for the eyes of whom it is from. Raises OpAtlasError."""
    assert target.files is not None
    names, left_out = write_report(path, found, target.files, target.database)
    variables = found["environment"]
    return Fields(
        {
            "host": found["host"],
            "findings": "the steps above with paths, serial numbers and what each printed; all Python packages",
            "variables": ", ".join(variables),
            "without values": ", ".join(n for n, value in variables.items() if value == _SECRET_VALUE) or None,
            "files": ", ".join(names),
            "left out": ", ".join(left_out) or None,
        },
        title=f"{path}: look through it before you send it",
    )
