"""Examines what this machine offers for measuring: each probe passes, fails, warns or is skipped.

Each probe runs in a process of its own with a deadline: a library that hangs, or kills its process, is a finding, too.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from opatlas.cli.arguments import add_json, teller, write_or_print_json
from opatlas.devices.device import KINDS
from opatlas.doctor.ascend import signs_of_ascend
from opatlas.doctor.probe import Probe, ProbeResult, State, Target, run_probe, skipped
from opatlas.doctor.probes import PROBES
from opatlas.doctor.report import expect_report, write_report
from opatlas.files import TemporaryFolder
from opatlas.options import add_database_path
from opatlas.progress import Progress, format_seconds
from opatlas.text import COLUMNS, printable

_FORMAT = 2
#: Variables that change what devices, their libraries and OpAtlas do, by the beginning of their names.
_VARIABLES = (
    *("ASCEND", "ATB_", "CANN", "CUDA", "HCCL", "LD_", "MKL_", "MSMODELING", "NPU_", "NVIDIA", "OMP_", "OPATLAS"),
    *("OPP_", "PATH", "PROFILING", "PYTEST", "PYTHON", "RANK_", "TASK_QUEUE", "TMPDIR", "TORCH", "VLLM", "WORLD_SIZE"),
)
#: Words in the names of variables that may hold a password: the report has no values of such variables.
_SECRET = ("KEY", "TOKEN", "SECRET", "PASS", "PWD", "AUTH", "CREDENTIAL")
_NO_ASCEND = "nothing points to an Ascend NPU here: the probes of NPUs are skipped"
#: A probe that takes longer is named on stderr while it runs.
_TOLD_AFTER_S = 3.0
#: Seconds between such lines where stderr is no terminal.
_LOGGED_EVERY_S = 15
_INDENT = " " * 20
#: A command to copy, in a remedy.
_COMMAND = re.compile(r"`[^`]+`")
#: Stands for a blank of a command while a text is wrapped.
_NO_BREAK = "\0"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "exit status: 0 everything that the device needs passes; 1 something that it needs fails, or the report "
        "cannot be written; 2 wrong usage"
    )
    parser.add_argument(
        "--device", default="", metavar="NAME", help="as in pytest bench/ (default: the device at hand)"
    )
    add_database_path(parser)
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE.zip",
        help="also write all findings into a zip file to send to us, with the last run and the kept profiles of "
        "--database-path if that is given (default: not written)",
    )
    parser.add_argument(
        "--group",
        action="store_true",
        help="also let two ranks meet over HCCL, NCCL or Gloo, and check and measure an all_reduce (default: off)",
    )
    add_json(parser, "all findings with their facts")


def run(arguments: argparse.Namespace) -> int:
    """Prints the findings, and returns the exit status that the epilog of the help explains. Raises OpAtlasError."""
    if arguments.report is not None:
        expect_report(arguments.report)
    kind = arguments.device if arguments.device in KINDS else ""
    signs = signs_of_ascend()
    with TemporaryFolder("doctor-files") as files:
        target = Target(arguments.device, kind, arguments.database_path, arguments.group, files=files)
        tell = teller(arguments.json)
        target, results = _examine(target, signs, tell)
        failing = [probe.name for probe in PROBES.values() if _fails(probe, results[probe.name], target)]
        what = f"the {target.kind or 'device'} needs"
        verb, they = ("fails", "it") if len(failing) == 1 else ("fail", "them")
        ending = f"{', '.join(failing)}: {verb}, and {what} {they}" if failing else f"everything that {what} passes"
        tell(f"\n{_wrap(ending)}")
        found = _as_json(target, signs, results)
        write_or_print_json(arguments.json, found)
        if arguments.report is not None:
            tell(_write(arguments.report, target, found))
    return 1 if failing else 0


def _examine(target: Target, signs: list[str], tell: Callable[[str], None]) -> tuple[Target, dict[str, ProbeResult]]:
    """Runs the probes, and tells their findings. Returns the target, with the kind of device that was found, too."""
    results: dict[str, ProbeResult] = {}
    device_is_there = True
    # Without a sign of an NPU only this probe is printed, for all probes of NPUs.
    first_of_ascend = next(probe for probe in PROBES.values() if probe.of_ascend)
    progress = Progress(len(PROBES), "probes", label="doctor")
    for probe in PROBES.values():
        if probe.of_ascend and not signs and target.kind != "npu":
            why_skipped = _NO_ASCEND
        elif not device_is_there and (probe.of_device or (probe.of_database and target.database is None)):
            why_skipped = "there is no device: see above"
        elif probe.requires and results[probe.requires].verdict.state is not State.PASS:
            why_skipped = f"{probe.requires} has to pass first: see above"
        else:
            why_skipped = ""
        if why_skipped:
            results[probe.name] = ProbeResult(skipped(why_skipped), 0.0, "")
        else:
            waiting = partial(_show_progress, progress, probe)
            results[probe.name] = run_probe(probe, _with_folder(target, probe), waiting)
            progress.clear()
        found = results[probe.name].verdict
        if probe.name == "device":
            device_is_there = found.state is State.PASS
            environment = found.facts.get("environment")
            target = replace(
                target,
                kind=str(found.facts.get("kind", target.kind)),
                environment=environment if isinstance(environment, dict) else {},
            )
        progress.done += 1
        if found.detail != _NO_ASCEND or probe is first_of_ascend:
            tell(_lines(probe, results[probe.name], target))
    return target, results


def _with_folder(target: Target, probe: Probe) -> Target:
    """Returns the target with a new folder for the files of a probe."""
    assert target.files is not None
    files = target.files / probe.name
    files.mkdir()
    return replace(target, files=files)


def _show_progress(progress: Progress, probe: Probe, took_s: float, last_line: str) -> None:
    """Shows that a probe is still running, and its last line; less often where stderr is no terminal."""
    if took_s >= _TOLD_AFTER_S and (progress.on_terminal or int(took_s) % _LOGGED_EVERY_S == 0):
        name = f"{probe.name}: {printable(last_line)}" if last_line else probe.name
        progress.show(name, f"{format_seconds(took_s)} of {format_seconds(probe.deadline_s)}")


def _fails(probe: Probe, result: ProbeResult, target: Target) -> bool:
    """Returns whether a failed probe matters: the device needs it, or, for an unknown device, several kinds need it."""
    needed = target.kind in probe.needed_by if target.kind else len(probe.needed_by) > 1
    return result.verdict.state is State.FAIL and needed


def _lines(probe: Probe, result: ProbeResult, target: Target) -> str:
    verdict = result.verdict
    detail, state = verdict.detail, str(verdict.state)
    if verdict.state is State.FAIL and not _fails(probe, result, target):
        # The remark is left out for a probe that no kind of device needs.
        detail += f" (not needed by the {target.kind or 'device'})" if probe.needed_by else ""
        state = "warn"
    first = f"{state:5} {probe.name:13} "
    lines = [_wrap(detail, first, _INDENT)]
    if verdict.remedy and verdict.state is not State.PASS:
        lines.append(_wrap(verdict.remedy, f"{_INDENT}-> ", f"{_INDENT}   "))
    return "\n".join(lines)


def _wrap(text: str, first: str = "", others: str = "") -> str:
    """Returns a text in lines of 80 columns, with paths, options and quoted commands whole."""
    whole = _COMMAND.sub(lambda found: found[0].replace(" ", _NO_BREAK), text)
    return textwrap.fill(
        whole, COLUMNS, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    ).replace(_NO_BREAK, " ")


def _as_json(target: Target, signs: list[str], results: Mapping[str, ProbeResult]) -> dict[str, object]:
    """Returns all findings, with the variables of the environment that change what devices do."""
    variables = {
        name: "(left out)" if any(word in name.upper() for word in _SECRET) else value
        for name, value in sorted(os.environ.items())
        if name.startswith(_VARIABLES)
    }
    return {
        "format": _FORMAT,
        "at": time.time(),
        "host": platform.node(),
        "device": target.device,
        "kind": target.kind,
        "signs_of_ascend": signs,
        "environment": variables,
        "probes": [
            {"name": name, "needed": target.kind in PROBES[name].needed_by, "seconds": result.took_s}
            | asdict(result.verdict)
            | {"output": result.output}
            for name, result in results.items()
        ],
    }


def _write(path: Path, target: Target, found: Mapping[str, object]) -> str:
    """Writes the report, and returns a sentence about its contents. Raises OpAtlasError."""
    assert target.files is not None
    variables = found["environment"]
    assert isinstance(variables, dict)
    names, left_out = write_report(path, found, target.files, target.database)
    secrets = [name for name, value in variables.items() if value == "(left out)"]
    of_database = [name for name in names if name.startswith("database/")]
    contents = [
        f"{path} holds: the name of this host; the findings above with paths, serial numbers where npu-smi tells "
        f"them, and the end of what each probe printed; the names and versions of all installed Python packages; "
        f"{len(variables)} environment variables ({', '.join(variables)})"
        + (f", without the values of {', '.join(secrets)}" if secrets else ""),
        _names_text("files of probes", [name for name in names if name.startswith("probes/")]),
        _names_text(f"of {target.database} the last run's manifest and reports, and kept profiles", of_database),
        _names_text("left out, too large or not readable", left_out),
    ]
    return "\n" + _wrap("; ".join(filter(None, contents)) + ". Look through it before you send it.")


def _names_text(what: str, names: Sequence[str]) -> str:
    """Returns `files of probes (a, b)`; "" without names."""
    return f"{what} ({', '.join(names)})" if names else ""
