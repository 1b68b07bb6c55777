"""Probes of an Ascend NPU: device files, driver, CANN, torch_npu, msprof, and the operators that replays call.

A replay looks an operator up when the first row needs it. The probes of operators look up all of them, in a process
with the environment and the device of a replay, and so name the kernel types whose rows would be skipped.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

from opatlas.row.errors import ReplayError
from opatlas.row.versions import cann_version
from opatlas.run.devices import npu_operators
from opatlas.run.devices.device import available_devices, open_device
from opatlas.run.devices.npu import KIND, import_torch_npu, set_env_scripts
from opatlas.run.devices.npu_operators import OR
from opatlas.run.devices.npu_smi import list_chips
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.msprof_output import msprof_executable
from opatlas.run.registry import replay_spec, replays_of_bench
from opatlas.text import exception_line, first_line, last_line, pluralize

from .probe import Target, Verdict, failed, passed, skipped

_DEVICE_FILES = Path("/dev")
_ASCEND = Path("/usr/local/Ascend")
#: Device files that every process opens with a device.
_MANAGERS = ("davinci_manager", "devmm_svm", "hisi_hdc")
_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
#: Deadline of a tool that only prints.
_TOOL_S = 30
#: Beginnings of the names of NPU calls whose kernels do not come with CANN.
_CUSTOM, _TRITON, _ATB = ("torch.ops._C_ascend.",), ("torch.ops.vllm.",), ("torch_npu.atb.", "torch_npu._npu_")
_ANY = ("torch",)
_NAMED = 8


def signs_of_ascend() -> list[str]:
    """Returns the signs of an NPU on this machine, whether or not the NPU works."""
    signs = [str(path) for path in (_ASCEND, *sorted(_DEVICE_FILES.glob("davinci*"))) if path.exists()]
    signs += [name for name in _HOMES if os.environ.get(name)]
    signs += [tool for tool in ("npu-smi", "msprof") if shutil.which(tool)]
    return signs + [name for name in ("torch_npu", "vllm_ascend") if find_spec(name)]


def npu_devices(target: Target) -> Verdict:
    """Looks for the device files, and whether this user may open them."""
    nodes = sorted(
        (path for path in _DEVICE_FILES.glob("davinci*") if re.fullmatch(r"davinci\d+", path.name)),
        key=lambda path: int(path.name[len("davinci") :]),
    )
    container = "in a container, pass it on: docker run --device {} ..."
    if not nodes:
        wanted = _DEVICE_FILES / "davinci0"
        return failed(f"{wanted} is missing", f"install the NPU driver; {container.format(wanted)}")
    managers = [_DEVICE_FILES / name for name in _MANAGERS]
    if absent := [str(path) for path in managers if not path.exists()]:
        return failed(f"{', '.join(absent)} missing", container.format(" --device ".join(absent)))
    closed = [str(path) for path in (*nodes, *managers) if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        return failed(
            f"{', '.join(closed)} cannot be read and written by user {os.getuid()}",
            "run as root, or add the user to the group that owns them (usermod -aG HwHiAiUser USER)",
        )
    names = ", ".join(path.name for path in nodes)
    return passed(f"{len(nodes)} ({names})", devices=[str(path) for path in nodes])


def npu_smi(target: Target) -> Verdict:
    """Runs npu-smi, and counts the chips that it shows."""
    executable = shutil.which("npu-smi")
    if executable is None:
        return failed("npu-smi is not on PATH", "install the NPU driver, or mount /usr/local/bin/npu-smi of the host")
    done = subprocess.run([executable, "info"], capture_output=True, text=True, timeout=_TOOL_S, check=False)
    said = (done.stdout + done.stderr).strip()
    if done.returncode:
        return failed(
            f"npu-smi info: exit code {done.returncode}: {first_line(said)}",
            "the driver does not run: look into `dmesg` and /var/log/npu, or mount /usr/local/Ascend/driver",
            info=said,
        )
    found = [f"{chip.logic}: {chip.name}" for chip in list_chips()]
    if not found:
        return failed("npu-smi info -m: no chip", "send us the report (--report), which has the table", info=said)
    return passed(", ".join(found), info=said, chips=found)


def cann(target: Target) -> Verdict:
    """Looks for the CANN toolkit, and whether its environment is set."""
    version = cann_version()
    homes = {name: value for name in _HOMES if (value := os.environ.get(name))}
    scripts = [str(path) for path in set_env_scripts() if path.is_file()]
    if version is None:
        return failed(
            f"no CANN toolkit below {', '.join(homes.values()) or _ASCEND}",
            "install the CANN toolkit and kernels, then source its set_env.sh",
            homes=homes,
        )
    if not homes:
        return failed(
            f"{version}, its environment is not set ({' and '.join(_HOMES)} are empty)",
            f"source {scripts[0] if scripts else _ASCEND / 'ascend-toolkit/set_env.sh'}",
        )
    gone = [f"{name}={home}" for name, home in homes.items() if not Path(home).is_dir()]
    if gone:
        return failed(f"{', '.join(gone)} is no folder", "source the set_env.sh of the CANN that is installed")
    libraries = [entry for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]
    if not any(entry.startswith(home) for entry in libraries for home in homes.values()):
        return failed(
            f"{version}, LD_LIBRARY_PATH has no folder of it",
            f"source {scripts[0]}" if scripts else "source its set_env.sh",
        )
    return passed(f"{version}, {homes.get(_HOMES[0], next(iter(homes.values())))}", version=version, homes=homes)


def torch_npu(target: Target) -> Verdict:
    """Imports torch_npu, and counts the devices that it sees."""
    module = import_torch_npu()
    import torch

    count = torch.get_device_module(KIND.name).device_count()
    facts = {"version": str(module.__version__), "file": str(module.__file__), "devices": count}
    if not count:
        visible = os.environ.get(KIND.visible)
        return failed(
            f"{module.__version__}, no device (ASCEND_RT_VISIBLE_DEVICES is {visible!r})",
            "repair what failed above first, or unset ASCEND_RT_VISIBLE_DEVICES",
            **facts,
        )
    return passed(f"{module.__version__}, {pluralize(count, 'device')}", **facts)


def npu(target: Target) -> Verdict:
    """Multiplies on the NPU, and measures a row without a profiler."""
    name = target.device if target.kind == KIND.name and target.device else KIND.name
    from .measure import measure_row

    return measure_row(name, KIND.events)


def msprof(target: Target) -> Verdict:
    """Looks for msprof, and whether it starts."""
    executable = msprof_executable()
    done = subprocess.run([executable, "--help"], capture_output=True, text=True, timeout=_TOOL_S, check=False)
    said = (done.stdout + done.stderr).strip()
    if "--output" not in said:
        return failed(
            f"{executable} --help: exit code {done.returncode}: {last_line(said)}",
            "source CANN's set_env.sh; --instrument npu-events measures without msprof",
            help=said,
        )
    return passed(executable, help=said)


def npu_calls(target: Target) -> Verdict:
    """Looks up the calls of torch_npu that replays make, except the calls of ATB."""
    others = _types_by_call(_ANY).keys() - _types_by_call((*_CUSTOM, *_TRITON, *_ATB)).keys()
    import_torch_npu()
    missing = _missing(others)
    if not missing:
        return passed(f"{len(others)} of {len(others)} calls", calls=sorted(others))
    found = f"{len(others) - len(missing)} of {len(others)} calls; {_effect(missing, 'unsupported')}"
    return failed(found, "a later torch_npu may have them", missing=missing)


def custom_ops(target: Target) -> Verdict:
    """Looks up vllm-ascend's custom operators, and loads the libraries of their kernels."""
    calls = _types_by_call(_CUSTOM)
    rows = _rows(_types(calls))
    named = os.environ.get(npu_operators.PATH_VARIABLE)
    if find_spec("vllm_ascend") is None and not named:
        return skipped(f"no vllm-ascend; skipped: {rows}", npu_operators.remedy())
    if not npu_operators.is_environment_set():
        libraries = npu_operators.LIBRARY_VARIABLE
        found = f"{npu_operators.PATH_VARIABLE}={named} is no folder, or {libraries} lacks its libraries"
        why = found if named else "vllm-ascend has no package of kernels"
        return failed(f"{why}; skipped: {rows}", npu_operators.remedy())
    _open(target)
    if missing := _missing(calls):
        return failed(_effect(missing, "skipped"), npu_operators.remedy(), missing=missing)
    if failures := list(filter(None, map(_load_failure, npu_operators.libraries()))):
        return failed(f"unsupported: {rows}: {'; '.join(failures)}", npu_operators.remedy())
    return passed(f"{len(calls)} operators and their kernels", calls=sorted(calls))


def _load_failure(library: Path) -> str:
    """Returns why a library cannot be loaded; "" if it can be loaded."""
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return exception_line(error)
    return ""


def _open(target: Target) -> None:
    """Opens the device, as a device process does before it looks for an operator. Raises OpAtlasError."""
    spec = available_devices(target.device or None)[0]
    open_device(spec, MeasureSettings())


def _types_by_call(prefixes: tuple[str, ...]) -> dict[str, list[str]]:
    """Returns the kernel types of each NPU call, for calls all of whose names begin with a prefix."""
    names: dict[str, list[str]] = defaultdict(list)
    for kernel_type, function in replays_of_bench().items():
        spec = replay_spec(function)
        if spec is not None and spec.npu is not None and all(n.startswith(prefixes) for n in spec.npu.split(OR)):
            names[spec.npu].append(kernel_type)
    return dict(names)


def _types(calls: Container[str]) -> list[str]:
    """Returns the kernel types whose replays make one of the calls."""
    return [kernel_type for call, types in _types_by_call(_ANY).items() if call in calls for kernel_type in types]


def _missing(calls: Iterable[str]) -> dict[str, str]:
    """Returns the calls that cannot be looked up, each with the reason."""
    missing = {}
    for call in sorted(calls):
        try:
            npu_operators.load_npu_call(call)
        except ReplayError as error:
            missing[call] = str(error)
    return missing


def _effect(missing: Mapping[str, str], fate: str) -> str:
    """Returns the fate of the rows that lack a call, their kernel types, and the reasons."""
    return f"{fate}: {_rows(_types(missing))}: {'; '.join(dict.fromkeys(missing.values()))}"


def _rows(types: Iterable[str]) -> str:
    """Returns `Add, Mul`, or `Add, Mul and 3 more`."""
    names = sorted(types)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
