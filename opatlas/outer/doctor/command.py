"""`opatlas doctor`: whether this machine can measure rows.

Each probe runs in a process of its own with a deadline: a library that hangs, or kills its process, is a finding, too.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from opatlas import formats
from opatlas.data.csv_files import write_atomically
from opatlas.errors import OpAtlasError
from opatlas.files import TemporaryFolder
from opatlas.progress import note_after, track
from opatlas.run.devices import cuda, npu
from opatlas.run.devices.device import available_devices, device_environment, device_kinds, kind_named
from opatlas.run.msprof_output import PARSE_TIMEOUT_S
from opatlas.show.result import Fields, Part, Result, Table

from . import ascend, machine, measure
from .probe import PRINTS_S, Probe, ProbeResult, State, Target, Verdict, passed, run_probe, skipped

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
#: Deadline of an import of torch, perhaps from a cold remote disk.
_IMPORTS_S = 180.0
#: Deadline of a device process and an export of msprof, whose own deadlines pass before and tell more.
_MEASURES_S = 2 * PARSE_TIMEOUT_S


def device(target: Target) -> Verdict:
    """Finds the devices that `pytest bench/` would replay on."""
    found = available_devices(target.device or None)
    names = ", ".join(sorted({spec.name or spec.kind for spec in found}))
    detail = f"{len(found)} x {found[0].kind} ({names})"
    return passed(detail, kind=found[0].kind, environment=device_environment(found[0]))


_NPU, _CUDA = (npu.KIND.name,), (cuda.KIND.name,)
_ON_TORCH_NPU: Mapping[str, Any] = {
    "of_ascend": True,
    "of_device": True,
    "requires": "torch_npu",
    "as_device_process": True,
}

#: By name, in the order in which they run.
PROBES = {
    probe.name: probe
    for probe in (
        Probe(device, 2 * PRINTS_S),
        Probe(machine.packages),
        Probe(machine.cpu, _IMPORTS_S),
        Probe(machine.cuda, _IMPORTS_S, _CUDA),
        Probe(ascend.npu_devices, needed_by=_NPU, of_ascend=True),
        Probe(ascend.npu_smi, needed_by=(), of_ascend=True),
        Probe(ascend.cann, needed_by=_NPU, of_ascend=True),
        Probe(ascend.torch_npu, _IMPORTS_S, _NPU, of_ascend=True),
        Probe(ascend.npu, 2 * _IMPORTS_S, _NPU, of_ascend=True, of_device=True, as_device_process=True),
        Probe(ascend.msprof, needed_by=_NPU, of_ascend=True),
        Probe(measure.replay, _MEASURES_S, of_device=True),
        Probe(ascend.npu_calls, _IMPORTS_S, (), **_ON_TORCH_NPU),
        Probe(ascend.custom_ops, _IMPORTS_S, (), **_ON_TORCH_NPU),
        Probe(measure.group, _MEASURES_S, of_device=True),
        Probe(machine.database, of_database=True),
    )
}


def doctor(
    *, device: str = "", database_path: Path | None = None, report: Path | None = None, group: bool = False
) -> Result:
    """Examines what this machine offers for measuring: each step passes, fails, warns or is skipped.

    Exit status: 0 everything that the device needs passes; 1 something that it needs fails, or the report cannot be
    written; 2 wrong usage.

    Args:
        device: as in `pytest bench/` (default: the device at hand).
        database_path: folder of the {KernelType}.csv files (default: that of the device and versions).
        report: write all findings into a zip file to send to us.
        group: let two ranks meet over HCCL, NCCL or Gloo, and check and measure an all_reduce.
    """
    if report is not None:
        _expect_report(report)
    signs = ascend.signs_of_ascend()
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
    """Writes the findings, and the files that probes left, as a zip file. Raises OpAtlasError.

    Returns what it holds, for the eyes of whom it is from.
    """
    files = target.files
    assert files is not None
    left = sorted(each for each in files.rglob("*") if each.is_file() and not each.is_symlink())
    names = ["doctor.json", *(f"probes/{each.relative_to(files)}" for each in left)]

    def write(temporary: str) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as report:
            report.writestr(names[0], json.dumps(found, indent=1) + "\n")
            for name, each in zip(names[1:], left, strict=True):
                report.write(each, name)

    write_atomically(path, write)
    variables = found["environment"]
    return Fields(
        {
            "host": found["host"],
            "findings": "the steps above with paths, serial numbers and what each printed; all Python packages",
            "variables": ", ".join(variables),
            "without values": ", ".join(n for n, value in variables.items() if value == _SECRET_VALUE) or None,
            "files": ", ".join(names),
        },
        title=f"{path}: look through it before you send it",
    )


def _expect_report(path: Path) -> None:
    """Makes the folder of a report. Raises OpAtlasError where a report cannot be written."""
    if path.is_dir():
        raise OpAtlasError(f"--report {path} is a folder: name a file in it, such as {path / 'doctor.zip'}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise OpAtlasError(f"--report {path} cannot be written ({error.strerror}): name another folder") from None
