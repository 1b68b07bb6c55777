"""What a machine needs before it can measure (device, packages, drivers, CANN, operators), and rows that it measures.

A replay looks an operator up when the first row needs it. The stage `operators` looks up all of them, in a process with
the environment and the device of a replay, and so names the kernel types whose rows would be skipped. Rows are measured
by the commands that a user runs.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree

from opatlas.data.csv_files import write_text
from opatlas.installation import CHECKOUT
from opatlas.row.columns import INPUT_SLOTS, OUTPUT_SLOTS
from opatlas.row.errors import ReplayError
from opatlas.row.versions import cann_version
from opatlas.run.devices import npu_operators
from opatlas.run.devices.device import available_devices, device_environment, kind_named, open_device
from opatlas.run.devices.npu import KIND, import_torch_npu, set_env_scripts
from opatlas.run.devices.npu_smi import list_chips
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.registry import replay_spec, replays_of_bench
from opatlas.text import exception_line, first_line

from .probe import Target, Verdict, failed, passed, skipped

_INSTALL = (
    "pip install 'opatlas[bench]'"
    if CHECKOUT is None
    else "pip install -c constraints.txt -e '.[bench]' in the checkout"
)
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


def device(target: Target) -> Verdict:
    """Finds the devices that `pytest bench/` would replay on."""
    found = available_devices(target.device or None)
    names = ", ".join(sorted({spec.name or spec.kind for spec in found}))
    detail = f"{len(found)} x {found[0].kind} ({names})"
    return passed(detail, kind=found[0].kind, environment=device_environment(found[0]))


def packages(target: Target) -> Verdict:
    """Compares installed versions with the ranges that OpAtlas and its extra `bench` require."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    installed: dict[str, str] = {
        canonicalize_name(found.metadata["Name"]): found.version for found in metadata.distributions()
    }
    wrong = []
    for each in map(Requirement, metadata.requires("opatlas") or []):
        version = installed.get(canonicalize_name(each.name), "")
        is_needed = each.marker is None or each.marker.evaluate({"extra": "bench"})
        if is_needed and not (version and each.specifier.contains(version, prereleases=True)):
            wrong.append(f"{each.name} {version or '(none)'} is not {each.specifier}")
    if wrong:
        return failed("; ".join(wrong), _INSTALL, installed=installed)
    shown = [f"{name} {installed[name]}" for name in ("opatlas", "torch", "pandas", "pytest") if name in installed]
    return passed(", ".join(shown), installed=installed)


def cuda(target: Target) -> Verdict:
    """Compares what nvidia-smi shows with what torch sees."""
    if not shutil.which("nvidia-smi") and not list(_DEVICE_FILES.glob("nvidia[0-9]*")) and target.kind != "cuda":
        return skipped("no NVIDIA GPU")
    driver = _told("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader")
    import torch

    if torch.version.cuda is None:
        return failed(f"torch {torch.__version__} without CUDA", "install a torch that was built with CUDA")
    if not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return failed(
            f"no GPU in torch.cuda (CUDA_VISIBLE_DEVICES is {visible!r}; nvidia-smi: {first_line(driver)})",
            "install the NVIDIA driver, or one that is new enough for this torch's CUDA (in a container, start it with "
            "--gpus all), or unset CUDA_VISIBLE_DEVICES",
        )
    return passed(f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}", nvidia_smi=driver)


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


def torch_npu(target: Target) -> Verdict:
    """Imports torch_npu, counts the devices that it sees, and measures rows without a profiler."""
    module = import_torch_npu()
    import torch

    count = torch.get_device_module(KIND.name).device_count()
    facts = {"version": str(module.__version__), "file": str(module.__file__), "devices": count}
    if not count:
        return failed(
            f"{module.__version__}, no device ({KIND.visible} is {os.environ.get(KIND.visible)!r})",
            f"repair what failed above first, or unset {KIND.visible}",
            **facts,
        )
    found = replay(target, "--instrument", KIND.events)
    return Verdict(found.state, f"{module.__version__}, {found.detail}", found.remedy, {**facts, **found.facts})


def operators(target: Target) -> Verdict:
    """Looks up the calls of replays, and loads the libraries of custom operators."""
    import_torch_npu()
    # As a device process does before it looks for an operator.
    open_device(available_devices(target.device or None)[0], MeasureSettings())
    types: dict[str, list[str]] = defaultdict(list)
    for kernel_type, function in replays_of_bench().items():
        spec = replay_spec(function)
        if spec is not None and spec.npu is not None:
            types[spec.npu].append(kernel_type)
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


def replay(target: Target, *options: str) -> Verdict:
    """Measures three rows by a session, with the device's default instrument: on an NPU under msprof."""
    assert target.files is not None
    for kernel_type, cells in ROWS.items():
        header = ",".join((*INPUT_SLOTS, *OUTPUT_SLOTS))
        row = ",".join(f'"{cell}"' for cell in cells)
        write_text(target.files / "rows" / f"{kernel_type}.csv", f"{header}\n{row}\n")
    measured, other = _session(target, "bench", *options)
    return failed("; ".join(other), _REMEDY) if other else passed(", ".join(measured))


def group(target: Target) -> Verdict:
    """Measures an all_reduce of two ranks: without a profiler, and with the device's default instrument."""
    kind = kind_named(available_devices(target.device or None)[0].kind)
    if not target.with_group:
        return skipped(f"two ranks over {kind.backend}: only with --group")
    told: list[str] = []
    message = ("--ops", "all_reduce", "--num-devices", "2", "--bytes-grid", str(1 << 20), "--comm-dtype", "float32")
    # The first session has no profiler, so that a failure is one of the communication library.
    for instrument in dict.fromkeys((kind.events, None)):
        options = ("--instrument", instrument) if instrument else ()
        measured, other = _session(target, "collectives", *message, *options)
        if other:
            remedy = f"measure groups with --instrument {kind.events}" if told else _REMEDIES[kind.backend]
            return failed("; ".join([*told, *other]), remedy)
        told += measured
    return passed("; ".join(told))


def _session(target: Target, *words: str) -> tuple[list[str], list[str]]:
    """Runs a command of OpAtlas in a database of the probe's; returns what it measured, and why it did not measure."""
    assert target.files is not None
    report = target.files / "junit.xml"
    places = ["--database-path", str(target.files / "rows"), "--junitxml", str(report), "--repeat-count", "3"]
    device = ["--device", target.device] if target.device else []
    done = subprocess.run([sys.executable, "-m", "opatlas", *words, *places, *device], check=False)
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
