"""`opatlas doctor`: whether this machine can measure rows.

Each stage runs in a process of its own with a deadline: a library that hangs, or kills its process, is a finding, too.
The process runs this module as a program.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from opatlas import formats
from opatlas.data.csv_files import write_atomically
from opatlas.errors import OpAtlasError
from opatlas.files import TemporaryFolder
from opatlas.progress import note_after, track
from opatlas.run.devices.device import device_kinds, kind_named
from opatlas.run.process.fresh_python import import_environment, module_command
from opatlas.run.process.keeper import die_with_parent
from opatlas.run.process.messages import decode, encode
from opatlas.show.result import Fields, Part, Result, Table
from opatlas.text import exception_line

from . import stages
from .stages import STAGES, State, Target, Verdict, failed

_FORMAT = 4
#: Variables that change what devices, their libraries and OpAtlas do, by the beginning of their names.
_VARIABLES = (
    *("ASCEND", "ATB_", "CANN", "CUDA", "HCCL", "LD_", "MKL_", "MSMODELING", "NPU_", "NVIDIA", "OMP_", "OPATLAS"),
    *("OPP_", "PATH", "PROFILING", "PYTEST", "PYTHON", "RANK_", "TASK_QUEUE", "TMPDIR", "TORCH", "VLLM", "WORLD_SIZE"),
)
#: Words in the names of variables that may hold a password: the report has no values of such variables.
_SECRET = ("KEY", "TOKEN", "SECRET", "PASS", "PWD", "AUTH", "CREDENTIAL")
_SECRET_VALUE = "(left out)"
#: A stage that takes longer is named on stderr while it runs.
_TOLD_AFTER_S = 5.0
#: A larger file, such as the raw data of a profile, is left out of the report.
_MOST_BYTES = 32 << 20

#: The end of a process's output is kept, in bytes.
_OUTPUT_KEPT = 8000
_ALWAYS = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONFAULTHANDLER": "1"}


def doctor(*, device: str = "", report: Path | None = None) -> Result:
    """Examines what this machine offers for measuring: each stage passes, fails, warns or is skipped.

    Exit status: 0 everything that the device needs passes; 1 something that it needs fails, or the report cannot be
    written; 2 wrong usage.

    Args:
        device: as in `pytest bench/` (default: the device at hand).
        report: write all findings into a zip file to send to us.
    """
    if report is not None and not report.is_file():
        # Before the stages, which take minutes.
        write_atomically(report, lambda temporary: None)
    signs = stages.signs_of_ascend()
    with TemporaryFolder("doctor-files") as files:
        kind, verdicts = _examine(Target(device, device if device in device_kinds() else "", files), signs)
        counts = Counter(verdict.state for verdict in verdicts.values())
        parts: list[Part] = [
            Table(
                ("stage", "status", "found", "remedy"),
                [(name, each.state, each.detail, each.remedy) for name, each in verdicts.items()],
            ),
            Fields({"device": kind or "not known", "signs of an NPU": ", ".join(signs) or "none"}),
            Fields({str(state): counts[state] for state in State if counts[state]}),
        ]
        found = {
            "format": _FORMAT,
            "at": time.time(),
            "host": platform.node(),
            "device": device,
            "kind": kind,
            "signs_of_ascend": signs,
            "packages": {each.metadata["Name"]: each.version for each in metadata.distributions()},
            "environment": {
                name: _SECRET_VALUE if any(word in name.upper() for word in _SECRET) else value
                for name, value in sorted(os.environ.items())
                if name.startswith(_VARIABLES)
            },
            "stages": [{"name": name, **asdict(verdict)} for name, verdict in verdicts.items()],
        }
        if report is not None:
            parts.append(_write(report, files, found))
    return Result(parts, json=found, status=1 if counts[State.FAIL] else 0)


def _examine(target: Target, signs: Sequence[str]) -> tuple[str, dict[str, Verdict]]:
    """Runs the stages; those of an NPU where there is a sign of one. Returns the kind of the device, too."""
    verdicts: dict[str, Verdict] = {}
    for name, stage in track(list(STAGES.items()), "doctor, stages"):
        has_npu = bool(target.kind) and kind_named(target.kind).is_native
        if stage.of_npu and not signs and not has_npu:
            continue
        if stage.on_device and verdicts["device"].state is not State.PASS:
            verdicts[name] = Verdict(State.SKIP, "device has to pass first")
            continue
        files = target.files / name
        files.mkdir()
        environment = verdicts["device"].facts.get("environment", {}) if stage.on_device else {}
        with note_after(f"{name}: at most {formats.seconds(stage.deadline_s)}", _TOLD_AFTER_S):
            verdict = run_stage(name, replace(target, files=files), environment)
        if name == "device":
            target = replace(target, kind=verdict.facts.get("kind", target.kind))
        if verdict.state is State.FAIL and not (stage.is_needed and (has_npu or not stage.of_npu)):
            verdict = replace(verdict, state=State.WARN)
        verdicts[name] = verdict
    return target.kind, verdicts


def run_stage(name: str, target: Target, environment: Mapping[str, str] | None = None) -> Verdict:
    """Runs a stage in a child process, with further variables. At its deadline process and children are killed."""
    from opatlas.run.process.child import describe_exit

    started, stage = time.monotonic(), STAGES[name]
    with TemporaryFolder("doctor") as folder, tempfile.TemporaryFile() as output:
        question, answer = folder / "target", folder / "verdict"
        question.write_bytes(encode(target))
        process = subprocess.Popen(
            module_command(__name__, stage.examine.__module__, stage.examine.__name__, str(question), str(answer)),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**import_environment(), **(environment or {}), **_ALWAYS},
            start_new_session=True,
        )
        ended = f"did not end within {stage.deadline_s:g} s"
        try:
            with suppress(subprocess.TimeoutExpired):
                process.wait(stage.deadline_s)
                ended = f"ended: {describe_exit(process.returncode)}"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        size = os.fstat(output.fileno()).st_size
        printed = os.pread(output.fileno(), _OUTPUT_KEPT, max(size - _OUTPUT_KEPT, 0)).decode(errors="replace")
        try:
            verdict: Verdict = decode(answer.read_bytes(), Verdict)
        except (OSError, ValueError):
            verdict = failed(f"the stage's process {ended}", "send us the report (--report), which has what it printed")
    return replace(verdict, seconds=time.monotonic() - started, output=printed)


def main(module: str, name: str, target: str, verdict_file: str) -> None:
    """Runs a stage on the target in a file, and writes its verdict into another one."""
    die_with_parent()
    try:
        verdict = getattr(import_module(module), name)(decode(Path(target).read_bytes(), Target))
    except OpAtlasError as error:
        # The message ends with the remedy.
        verdict = failed(str(error))
    except Exception as error:  # An error of a library is a finding of the stage.
        verdict = failed(exception_line(error), traceback=traceback.format_exc())
    Path(verdict_file).write_bytes(encode(verdict))


def _write(path: Path, files: Path, found: Mapping[str, Any]) -> Fields:
    """Writes the findings, and the files that stages left, as a zip file. Raises OpAtlasError.

    Returns what it holds, so that the sender can look through it.
    """
    left = [each for each in sorted(files.rglob("*")) if each.is_file() and not each.is_symlink()]
    contents = {f"stages/{each.relative_to(files)}": each for each in left if each.stat().st_size <= _MOST_BYTES}

    def write(temporary: str) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as report:
            report.writestr("doctor.json", json.dumps(found, indent=1) + "\n")
            for name, each in contents.items():
                report.write(each, name)

    write_atomically(path, write)
    return Fields(
        {
            "host": found["host"],
            "findings": "the stages above with paths, serial numbers and what each printed; all Python packages",
            "variables, those of secrets without values": ", ".join(found["environment"]),
            "files": ", ".join(["doctor.json", *contents]),
        },
        title=f"{path}: look through it before you send it",
    )


if __name__ == "__main__":
    # The stages import this package by its name: one copy of its classes is enough.
    import_module("opatlas.outer.doctor.command").main(*sys.argv[1:])
