"""`opatlas doctor`: whether this machine can measure rows.

Each probe runs in a process of its own with a deadline: a library that hangs, or kills its process, is a finding, too.
"""

from __future__ import annotations

import json
import os
import platform
import time
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from opatlas import formats
from opatlas.data.csv_files import write_atomically
from opatlas.files import TemporaryFolder
from opatlas.progress import note_after, track
from opatlas.run.devices.device import device_kinds, kind_named
from opatlas.run.msprof_output import PARSE_TIMEOUT_S
from opatlas.show.result import Fields, Part, Result, Table

from . import stages
from .probe import PRINTS_S, Probe, ProbeResult, State, Target, run_probe, skipped

_FORMAT = 3
#: Variables that change what devices, their libraries and OpAtlas do, by the beginning of their names.
_VARIABLES = (
    *("ASCEND", "ATB_", "CANN", "CUDA", "HCCL", "LD_", "MKL_", "MSMODELING", "NPU_", "NVIDIA", "OMP_", "OPATLAS"),
    *("OPP_", "PATH", "PROFILING", "PYTEST", "PYTHON", "RANK_", "TASK_QUEUE", "TMPDIR", "TORCH", "VLLM", "WORLD_SIZE"),
)
#: Words in the names of variables that may hold a password: the report has no values of such variables.
_SECRET = ("KEY", "TOKEN", "SECRET", "PASS", "PWD", "AUTH", "CREDENTIAL")
_SECRET_VALUE = "(left out)"
#: A probe that takes longer is named on stderr while it runs.
_TOLD_AFTER_S = 5.0
#: Deadline of an import of torch, perhaps from a cold remote disk.
_IMPORTS_S = 180.0
#: Deadline of a session and an export of msprof, whose own deadlines pass before and tell more.
_MEASURES_S = 2 * PARSE_TIMEOUT_S
#: A larger file, such as the raw data of a profile, is left out of the report.
_MOST_BYTES = 32 << 20

#: By name, in the order in which they run.
PROBES = {
    probe.name: probe
    for probe in (
        Probe(stages.device, 2 * PRINTS_S),
        Probe(stages.packages),
        Probe(stages.cuda, _IMPORTS_S, ("cuda",)),
        Probe(stages.npu_driver, needed_by=("npu",), of_ascend=True),
        Probe(stages.cann, needed_by=("npu",), of_ascend=True),
        Probe(stages.torch_npu, _MEASURES_S, ("npu",), of_ascend=True, requires="device"),
        Probe(stages.replay, _MEASURES_S, requires="device"),
        Probe(stages.operators, _IMPORTS_S, (), of_ascend=True, requires="torch_npu", as_device_process=True),
        Probe(stages.group, _MEASURES_S, requires="device"),
    )
}


def doctor(*, device: str = "", report: Path | None = None, group: bool = False) -> Result:
    """Examines what this machine offers for measuring: each step passes, fails, warns or is skipped.

    Exit status: 0 everything that the device needs passes; 1 something that it needs fails, or the report cannot be
    written; 2 wrong usage.

    Args:
        device: as in `pytest bench/` (default: the device at hand).
        report: write all findings into a zip file to send to us.
        group: let two ranks meet over HCCL, NCCL or Gloo, and check and measure an all_reduce.
    """
    if report is not None and not report.is_file():
        # Before the steps, which take minutes.
        write_atomically(report, lambda temporary: None)
    signs = stages.signs_of_ascend()
    with TemporaryFolder("doctor-files") as files:
        kind = device if device in device_kinds() else ""
        kind, results = _examine(Target(device, kind, group, files), signs)
        found = {
            "format": _FORMAT,
            "at": time.time(),
            "host": platform.node(),
            "device": device,
            "kind": kind,
            "signs_of_ascend": signs,
            "environment": {
                name: _SECRET_VALUE if any(word in name.upper() for word in _SECRET) else value
                for name, value in sorted(os.environ.items())
                if name.startswith(_VARIABLES)
            },
            "probes": [
                {"name": name, "seconds": result.took_s, **asdict(result.verdict), "output": result.output}
                for name, result in results.items()
            ],
        }
        verdicts = {name: result.verdict for name, result in results.items()}
        counts = Counter(verdict.state for verdict in verdicts.values())
        rows = [(name, each.state, each.detail, each.remedy) for name, each in verdicts.items()]
        parts: list[Part] = [
            Table(("step", "status", "found", "remedy"), rows),
            Fields({"device": kind or "not known", "signs of an NPU": ", ".join(signs) or "none"}),
            Fields({str(state): counts[state] for state in State if counts[state]}),
        ]
        if report is not None:
            parts.append(_write(report, files, found))
    return Result(parts, json=found, status=1 if counts[State.FAIL] else 0)


def _examine(target: Target, signs: Sequence[str]) -> tuple[str, dict[str, ProbeResult]]:
    """Runs the probes; those of an NPU where there is a sign of one. Returns the kind of the device, too."""
    results: dict[str, ProbeResult] = {}
    environment: Mapping[str, str] = {}
    for name, probe in track(list(PROBES.items()), "doctor, steps"):
        if probe.of_ascend and not signs and not kind_named(target.kind).is_native:
            continue
        if probe.requires and results[probe.requires].verdict.state is not State.PASS:
            results[name] = ProbeResult(skipped(f"{probe.requires} has to pass first"))
            continue
        assert target.files is not None
        files = target.files / name
        files.mkdir()
        with note_after(f"{name}: at most {formats.seconds(probe.deadline_s)}", _TOLD_AFTER_S):
            own = environment if probe.as_device_process else {}
            result = run_probe(probe, replace(target, files=files), own)
        if name == "device":
            environment = result.verdict.facts.get("environment", {})
            target = replace(target, kind=result.verdict.facts.get("kind", target.kind))
        needed = target.kind in probe.needed_by if target.kind else len(probe.needed_by) > 1
        if result.verdict.state is State.FAIL and not needed:
            result = replace(result, verdict=replace(result.verdict, state=State.WARN))
        results[name] = result
    return target.kind, results


def _write(path: Path, files: Path, found: Mapping[str, Any]) -> Fields:
    """Writes the findings, and the files that probes left, as a zip file. Raises OpAtlasError.

    Returns what it holds, for the eyes of whom it is from.
    """
    left = [each for each in sorted(files.rglob("*")) if each.is_file() and not each.is_symlink()]
    contents = {f"probes/{each.relative_to(files)}": each for each in left if each.stat().st_size <= _MOST_BYTES}

    def write(temporary: str) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as report:
            report.writestr("doctor.json", json.dumps(found, indent=1) + "\n")
            for name, each in contents.items():
                report.write(each, name)

    write_atomically(path, write)
    return Fields(
        {
            "host": found["host"],
            "findings": "the steps above with paths, serial numbers and what each printed; all Python packages",
            "variables, those of secrets without values": ", ".join(found["environment"]),
            "files": ", ".join(["doctor.json", *contents]),
        },
        title=f"{path}: look through it before you send it",
    )
