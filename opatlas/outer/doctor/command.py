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
from opatlas.run.devices import cuda, npu
from opatlas.run.devices.device import device_kinds, kind_named
from opatlas.run.msprof_output import PARSE_TIMEOUT_S
from opatlas.show.result import Fields, Part, Result, Table

from . import ascend, machine, measure
from .probe import PRINTS_S, Probe, ProbeResult, State, Target, run_probe, skipped

_FORMAT = 2
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
_WARN = "warn"
#: Deadline of an import of torch, perhaps from a cold remote disk.
_IMPORTS_S = 180.0
#: Deadline of a device process and an export of msprof, whose own deadlines pass before and tell more.
_MEASURES_S = 2 * PARSE_TIMEOUT_S
_NPU, _CUDA, _DEVICE, _TORCH = (npu.KIND.name,), (cuda.KIND.name,), ("device",), ("device", "torch_npu")

#: By name, in the order in which they run.
PROBES = {
    probe.name: probe
    for probe in (
        Probe(machine.device, 2 * PRINTS_S),
        Probe(machine.packages),
        Probe(machine.cpu, _IMPORTS_S),
        Probe(machine.cuda, _IMPORTS_S, _CUDA),
        Probe(ascend.npu_devices, needed_by=_NPU, of_ascend=True),
        Probe(ascend.npu_smi, needed_by=(), of_ascend=True),
        Probe(ascend.cann, needed_by=_NPU, of_ascend=True),
        Probe(ascend.torch_npu, _IMPORTS_S, _NPU, of_ascend=True),
        Probe(ascend.npu, 2 * _IMPORTS_S, _NPU, of_ascend=True, requires=_DEVICE, as_device_process=True),
        Probe(measure.replay, _MEASURES_S, requires=_DEVICE),
        Probe(ascend.npu_calls, _IMPORTS_S, (), of_ascend=True, requires=_TORCH, as_device_process=True),
        Probe(ascend.custom_ops, _IMPORTS_S, (), of_ascend=True, requires=_TORCH, as_device_process=True),
        Probe(measure.group, _MEASURES_S, requires=_DEVICE),
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
    signs = ascend.signs_of_ascend()
    with TemporaryFolder("doctor-files") as files:
        kind = device if device in device_kinds() else ""
        target, results = _examine(Target(device, kind, group, files=files), signs)
        states = {name: _state(PROBES[name], result, target) for name, result in results.items()}
        found = _as_json(target, signs, results)
        counts = Counter(states.values())
        verdicts = [(name, result.verdict) for name, result in results.items()]
        rows = [
            (name, states[name], verdict.detail, "" if verdict.state is State.PASS else verdict.remedy)
            for name, verdict in verdicts
        ]
        parts: list[Part] = [
            Table(("step", "status", "found", "remedy"), rows),
            Fields({"device": target.kind or "not known", "signs of an NPU": ", ".join(signs) or "none"}),
            Fields({state: counts[state] for state in (*map(str, State), _WARN) if counts[state]}),
        ]
        if report is not None:
            parts.append(_write(report, target, found))
    return Result(parts, json=found, status=1 if counts[State.FAIL] else 0)


def _examine(target: Target, signs: Sequence[str]) -> tuple[Target, dict[str, ProbeResult]]:
    """Runs the probes; those of an NPU where there is a sign of one. Returns the target with the kind of its device."""
    results: dict[str, ProbeResult] = {}
    for probe in track(list(PROBES.values()), "doctor, steps"):
        if probe.of_ascend and not signs and not kind_named(target.kind).is_native:
            continue
        absent = [each for each in probe.requires if results[each].verdict.state is not State.PASS]
        if absent:
            results[probe.name] = ProbeResult(skipped(f"{absent[0]} has to pass first"), 0.0, "")
            continue
        assert target.files is not None
        files = target.files / probe.name
        files.mkdir()
        with note_after(f"{probe.name}: at most {formats.seconds(probe.deadline_s)}", _TOLD_AFTER_S):
            found = results[probe.name] = run_probe(probe, replace(target, files=files))
        if probe.name == "device":
            facts = found.verdict.facts
            target = replace(
                target, kind=facts.get("kind", target.kind), environment=facts.get("environment", target.environment)
            )
    return target, results


def _state(probe: Probe, result: ProbeResult, target: Target) -> str:
    """Returns the state of a probe: "warn" for a failure that the device does not need mended."""
    needed = target.kind in probe.needed_by if target.kind else len(probe.needed_by) > 1
    return _WARN if result.verdict.state is State.FAIL and not needed else str(result.verdict.state)


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
    """Writes the findings, and the files that probes left, as a zip file. Raises OpAtlasError.

    Returns what it holds, for the eyes of whom it is from.
    """
    files = target.files
    assert files is not None
    left = sorted(each for each in files.rglob("*") if each.is_file() and not each.is_symlink())
    contents = {f"probes/{each.relative_to(files)}": each for each in left}

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
