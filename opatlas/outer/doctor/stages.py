"""What a machine needs before it can measure (device, drivers, CANN, operators), and rows that it measures.

A replay looks an operator up when the first row needs it. The stage `operators` looks up all of them, in a process with
the environment and the device of a replay, and so names the kernel types whose rows would be skipped. Rows are measured
by the commands that a user runs, which say what is wrong with torch, torch_npu and the device.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from opatlas.data.csv_files import write_text
from opatlas.grouping import grouped
from opatlas.row.columns import INPUT_SLOTS, OUTPUT_SLOTS
from opatlas.row.errors import ReplayError
from opatlas.row.versions import cann_version
from opatlas.run.devices import npu_operators
from opatlas.run.devices.device import available_devices, device_environment, kind_named, open_device
from opatlas.run.devices.npu import import_torch_npu, set_env_scripts
from opatlas.run.devices.npu_smi import list_chips
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.msprof_output import PARSE_TIMEOUT_S
from opatlas.run.registry import replay_spec, replays_of_bench
from opatlas.text import Word, exception_line, first_line

_DEVICE_FILES = Path("/dev")
_ASCEND = Path("/usr/local/Ascend")
#: Device files that every process opens with a device.
_MANAGERS = ("davinci_manager", "devmm_svm", "hisi_hdc")
_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
#: Deadline of a tool that only prints.
_TOOL_S = 30
_NAMED = 8
#: By kernel type, a row for each way in which kernels compute: element by element, along an axis, a matrix product.
ROWS: Mapping[str, tuple[str, ...]] = {
    "Add": ("16,64;16,64", "FLOAT;FLOAT", "ND;ND", "16,64", "FLOAT", "ND"),
    "SoftmaxV2": ("16,256", "FLOAT", "ND", "16,256", "FLOAT", "ND"),
    "MatMulV2": ("64,128;128,64", "FLOAT16;FLOAT16", "ND;ND", "64,64", "FLOAT16", "ND"),
}
_REMEDY = (
    "see what the session printed (--report has it, with tracebacks and profiles). On an NPU also `dmesg`, `npu-smi "
    "info` and whether msprof works by itself (`msprof --output=/tmp/alone sleep 1`); --instrument npu-events does "
    "without it"
)
#: The most frequent causes of groups that do not start, by communication library.
_REMEDIES = {
    "hccl": (
        "see whether the links are up (hccn_tool -i N -link -g for each device), whether HCCL_SOCKET_IFNAME or "
        "HCCL_IF_IP names an interface of this host, and what NPU logs say (~/ascend/log, with "
        "ASCEND_GLOBAL_LOG_LEVEL=1); rows of one device need no HCCL"
    ),
    "nccl": "run it again with NCCL_DEBUG=INFO, which tells what NCCL does; rows of one device need no NCCL",
    "gloo": "see whether GLOO_SOCKET_IFNAME names an interface of this host, and whether the host's name resolves",
}


class State(Word):
    """How a stage ended; a failure of what the device does not need is a warning."""

    PASS = "pass"
    FAIL = "fail"
    WARN = "warn"
    SKIP = "skip"


@dataclass(frozen=True)
class Verdict:
    """What a stage found.

    Attributes:
        state: whether the examined part works.
        detail: the finding, in a line.
        remedy: what to do; "" if there is nothing to do.
        facts: details for the report.
        seconds, output: how long its process took, and the end of what it printed.
    """

    state: State
    detail: str
    remedy: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    output: str = ""


def passed(detail: str, /, **facts: Any) -> Verdict:
    """Returns the verdict on something that exists and works."""
    return Verdict(State.PASS, detail, "", facts)


def failed(detail: str, remedy: str = "", /, **facts: Any) -> Verdict:
    """Returns the verdict on something that is missing or does not work."""
    return Verdict(State.FAIL, detail, remedy, facts)


@dataclass(frozen=True)
class Target:
    """The device for which the machine is examined.

    Attributes:
        device: as in `pytest bench/ --device`; "" for the device at hand.
        kind: the kind of the device; "" before the kind is known.
        files: a folder in which a stage leaves files for the report.
    """

    device: str = ""
    kind: str = ""
    files: Path = Path()


def device(target: Target) -> Verdict:
    """Finds the devices that `pytest bench/` would replay on."""
    found = available_devices(target.device or None)
    names = ", ".join(sorted({spec.name or spec.kind for spec in found}))
    detail = f"{len(found)} x {found[0].kind} ({names})"
    return passed(detail, kind=found[0].kind, environment=device_environment(found[0]))


def _told(*command: str) -> str:
    """Returns what a tool prints, or why it prints nothing."""
    if not shutil.which(command[0]):
        return f"{command[0]} is not on PATH"
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_S, check=False)
    said = (done.stdout + done.stderr).strip()
    return f"{command[0]}: exit code {done.returncode}: {said}" if done.returncode else said


def signs_of_ascend() -> list[str]:
    """Returns the signs of an NPU on this machine, whether or not the NPU works."""
    signs = [str(path) for path in (_ASCEND, *sorted(_DEVICE_FILES.glob("davinci*"))) if path.exists()]
    signs += [name for name in _HOMES if os.environ.get(name)]
    signs += [tool for tool in ("npu-smi", "msprof") if shutil.which(tool)]
    return signs + [name for name in ("torch_npu", "vllm_ascend") if find_spec(name)]


def npu_driver(target: Target) -> Verdict:
    """Looks for the device files, whether this user may open them, and for the chips that npu-smi shows."""
    info = _told("npu-smi", "info")
    files = sorted(_DEVICE_FILES.glob("davinci*"), key=lambda path: (len(path.name), path.name))
    nodes = [path for path in files if re.fullmatch(r"davinci\d+", path.name)]
    wanted = [*(nodes or [_DEVICE_FILES / "davinci0"]), *(_DEVICE_FILES / name for name in _MANAGERS)]
    if absent := [str(path) for path in wanted if not path.exists()]:
        remedy = (
            f"install the NPU driver; in a container, pass them on: docker run --device {' --device '.join(absent)}"
        )
        return failed(f"{', '.join(absent)} missing", remedy, info=info)
    if closed := [str(path) for path in wanted if not os.access(path, os.R_OK | os.W_OK)]:
        return failed(
            f"{', '.join(closed)} cannot be read and written by user {os.getuid()}",
            "run as root, or add the user to the group that owns them (usermod -aG HwHiAiUser USER)",
            info=info,
        )
    names = ", ".join(path.name for path in nodes)
    # Rows are measured without npu-smi, too.
    chips = [f"{chip.logic}: {chip.name}" for chip in list_chips()] if shutil.which("npu-smi") else []
    return passed(f"{names}; npu-smi: {', '.join(chips) or first_line(info)}", info=info)


def cann(target: Target) -> Verdict:
    """Looks for the CANN toolkit, and whether its environment is set."""
    version = cann_version()
    homes = {name: value for name in _HOMES if (value := os.environ.get(name))}
    script = next((path for path in set_env_scripts() if path.is_file()), _ASCEND / "ascend-toolkit" / "set_env.sh")
    if version is None:
        where = ", ".join(homes.values()) or _ASCEND
        return failed(f"no CANN toolkit below {where}", "install the CANN toolkit and kernels, then source set_env.sh")
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    if not homes:
        wrong = f"{' and '.join(_HOMES)} are empty"
    elif gone := [f"{name}={home}" for name, home in homes.items() if not Path(home).is_dir()]:
        wrong = f"{', '.join(gone)} is no folder"
    elif not any(entry.startswith(home) for entry in libraries for home in homes.values()):
        wrong = "LD_LIBRARY_PATH has no folder of it"
    else:
        return passed(f"{version}, {next(iter(homes.values()))}", version=version, homes=homes)
    return failed(f"{version}, its environment is not set: {wrong}", f"source {script}")


def operators(target: Target) -> Verdict:
    """Looks up the calls of replays, and loads the libraries of custom operators."""
    import_torch_npu()
    # As a device process does before it looks for an operator.
    open_device(available_devices(target.device or None)[0], MeasureSettings())
    specs = ((name, replay_spec(function)) for name, function in replays_of_bench().items())
    types = grouped((spec.npu, name) for name, spec in specs if spec is not None and spec.npu is not None)
    missing: dict[str, list[str]] = defaultdict(list)
    for call in sorted(types):
        try:
            npu_operators.load_npu_call(call)
        except ReplayError as error:
            missing[str(error)] += types.pop(call)
    for why in _unloaded():
        missing[f"{why}: {npu_operators.remedy()}"] += ["custom operators"]
    if not missing:
        return passed(f"{len(types)} calls", calls=sorted(types))
    told = [f"{_names(names)}: {why}" for why, names in missing.items()]
    remedy = "rows of these types are skipped, the others run: install what they need"
    return failed(f"{len(types)} calls are there; none for {'; '.join(told)}", remedy, calls=sorted(types))


def _unloaded() -> Iterator[str]:
    """Yields why libraries of custom operators cannot be loaded, which torch_npu only logs."""
    for library in npu_operators.libraries():
        try:
            ctypes.CDLL(str(library))
        except OSError as error:
            yield exception_line(error)


def _names(names: list[str]) -> str:
    """Returns `Add, Mul`, or `Add, Mul and 3 more`."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(sorted(names)[:_NAMED])}{more}"


def replay(target: Target) -> Verdict:
    """Measures three rows by sessions."""
    header = ",".join((*INPUT_SLOTS, *OUTPUT_SLOTS))
    rows = {name: f"{header}\n" + ",".join(f'"{cell}"' for cell in cells) + "\n" for name, cells in ROWS.items()}
    return _measured(target, _REMEDY, rows, "bench")


def group(target: Target) -> Verdict:
    """Measures an all_reduce of two ranks."""
    kind = kind_named(target.kind)
    if kind.visible and len(available_devices(target.device or None)) < 2:
        return Verdict(State.SKIP, "one device: no two ranks can meet")
    message = ("--ops", "all_reduce", "--num-devices", "2", "--bytes-grid", str(1 << 20), "--comm-dtype", "float32")
    return _measured(target, _REMEDIES[kind.backend], {}, "collectives", *message)


def _measured(target: Target, remedy: str, rows: Mapping[str, str], *words: str) -> Verdict:
    """Measures by a command: without a profiler, whose failure is one of the device, and as the device is by default.

    Args:
        rows: the CSV text of each kernel type of the database.
    """
    told: list[str] = []
    events = kind_named(target.kind).events
    for instrument in dict.fromkeys((events, None)):
        place = target.files / (instrument or "rows")
        for name, text in rows.items():
            write_text(place / f"{name}.csv", text)
        options = ["--database-path", str(place), "--repeat-count", "3"]
        options += ["--instrument", instrument] if instrument else []
        measured, other = _session(place, *words, *options, *(["--device", target.device] if target.device else []))
        if other:
            return failed(
                "; ".join([*told, *other]), f"measure with --instrument {events}; or {remedy}" if told else remedy
            )
        told += measured
    return passed("; ".join(told))


def _session(place: Path, *words: str) -> tuple[list[str], list[str]]:
    """Runs a command of OpAtlas in a database; returns what it measured, and why it did not measure."""
    report = place / "junit.xml"
    done = subprocess.run([sys.executable, "-m", "opatlas", *words, "--junitxml", str(report)], check=False)
    cases = list(ElementTree.parse(report).iter("testcase")) if report.is_file() else []
    measured, other = [], []
    for case in cases:
        facts = {each.get("name"): each.get("value") for each in case.iter("property")}
        text = " ".join([str(case.get("classname")), case.findtext("system-out") or "", facts.get("reason") or ""])
        if facts.get("status") == "measured":
            measured.append(" ".join(text.split()))
        else:
            other.append(f"{case.get('classname')}: {facts.get('status')}: {facts.get('reason')}")
    return measured, other or ([] if cases else [f"no row ran: exit code {done.returncode}"])


@dataclass(frozen=True)
class Stage:
    """A stage of the doctor's examination.

    Attributes:
        examine: examines the machine for a target; an exception is a failure.
        deadline_s: the time in seconds after which its process is killed.
        of_npu: runs only where there is a sign of an NPU, and is needed by NPUs alone.
        is_needed: whether its failure is that of the device.
        on_device: whether it needs the device, and runs in the environment of the process that owns the device.
    """

    examine: Callable[[Target], Verdict]
    deadline_s: float = 120.0
    of_npu: bool = False
    is_needed: bool = True
    on_device: bool = False


#: Deadline of sessions and exports of msprof, whose own deadlines pass before and tell more.
_MEASURES_S = 4 * PARSE_TIMEOUT_S
#: By name, in the order in which they run.
STAGES = {
    stage.examine.__name__: stage
    for stage in (
        Stage(device),
        Stage(npu_driver, of_npu=True),
        Stage(cann, of_npu=True),
        Stage(replay, _MEASURES_S, on_device=True),
        Stage(operators, 180.0, of_npu=True, is_needed=False, on_device=True),
        Stage(group, _MEASURES_S, on_device=True),
    )
}
