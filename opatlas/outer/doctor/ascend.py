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
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

from opatlas.row.errors import ReplayError
from opatlas.row.versions import cann_version
from opatlas.run.devices import npu_operators
from opatlas.run.devices.device import available_devices, open_device
from opatlas.run.devices.npu import KIND, import_torch_npu, set_env_scripts
from opatlas.run.devices.npu_operators import OR
from opatlas.run.devices.npu_smi import list_chips
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.registry import replay_spec, replays_of_bench
from opatlas.text import exception_line, first_line, pluralize

from .machine import measure_row
from .probe import State, Target, Verdict, failed, passed, skipped

_DEVICE_FILES = Path("/dev")
_ASCEND = Path("/usr/local/Ascend")
#: Device files that every process opens with a device.
_MANAGERS = ("davinci_manager", "devmm_svm", "hisi_hdc")
_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
#: Deadline of a tool that only prints.
_TOOL_S = 30
#: Beginnings of the names of NPU calls whose kernels do not come with CANN: custom ones; those of Triton and ATB.
_CUSTOM, _OTHERS = "torch.ops._C_ascend.", ("torch.ops.vllm.", "torch_npu.atb.", "torch_npu._npu_")
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
    script = next((path for path in set_env_scripts() if path.is_file()), _ASCEND / "ascend-toolkit" / "set_env.sh")
    if version is None:
        return failed(
            f"no CANN toolkit below {', '.join(homes.values()) or _ASCEND}",
            "install the CANN toolkit and kernels, then source its set_env.sh",
            homes=homes,
        )
    if not homes:
        return failed(
            f"{version}, its environment is not set ({' and '.join(_HOMES)} are empty)",
            f"source {script}",
        )
    gone = [f"{name}={home}" for name, home in homes.items() if not Path(home).is_dir()]
    if gone:
        return failed(f"{', '.join(gone)} is no folder", "source the set_env.sh of the CANN that is installed")
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    if not any(entry.startswith(home) for entry in libraries for home in homes.values()):
        return failed(f"{version}, LD_LIBRARY_PATH has no folder of it", f"source {script}")
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
    return measure_row(target.device if target.kind == KIND.name and target.device else KIND.name, KIND.events)


def npu_calls(target: Target) -> Verdict:
    """Looks up the calls of torch_npu that replays make; operators of other libraries are not among them."""
    import_torch_npu()
    calls = {call: types for call, types in _types_by_call().items() if not _is_of((_CUSTOM, *_OTHERS), call)}
    return _look_up(calls, "a later torch_npu may have them")


def custom_ops(target: Target) -> Verdict:
    """Looks up vllm-ascend's custom operators, and loads the libraries of their kernels."""
    calls = {call: types for call, types in _types_by_call().items() if _is_of((_CUSTOM,), call)}
    rows = _rows(calls.values())
    named = os.environ.get(npu_operators.PATH_VARIABLE)
    remedy = npu_operators.remedy()
    if find_spec("vllm_ascend") is None and not named:
        return skipped(f"no vllm-ascend; skipped: {rows}", remedy)
    if not npu_operators.is_environment_set():
        variables = npu_operators.PATH_VARIABLE, npu_operators.LIBRARY_VARIABLE
        why = f"{variables[0]}={named} is no folder, or {variables[1]} lacks its libraries"
        return failed(f"{why if named else 'vllm-ascend has no kernels'}; skipped: {rows}", remedy)
    # As a device process does before it looks for an operator.
    open_device(available_devices(target.device or None)[0], MeasureSettings())
    found = _look_up(calls, remedy)
    if found.state is not State.PASS:
        return found
    if failures := list(filter(None, map(_load_failure, npu_operators.libraries()))):
        return failed(f"unsupported: {rows}: {'; '.join(failures)}", remedy)
    return found


def _load_failure(library: Path) -> str:
    """Returns why a library cannot be loaded; "" if it can be loaded."""
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return exception_line(error)
    return ""


def _types_by_call() -> dict[str, list[str]]:
    """Returns the kernel types of each NPU call."""
    calls: dict[str, list[str]] = defaultdict(list)
    for kernel_type, function in replays_of_bench().items():
        spec = replay_spec(function)
        if spec is not None and spec.npu is not None:
            calls[spec.npu].append(kernel_type)
    return calls


def _is_of(libraries: tuple[str, ...], call: str) -> bool:
    return all(name.startswith(libraries) for name in call.split(OR))


def _look_up(calls: Mapping[str, Sequence[str]], remedy: str) -> Verdict:
    """Looks up calls, whose kernel types are given: rows of those that are missing would be skipped."""
    missing = {}
    for call in sorted(calls):
        try:
            npu_operators.load_npu_call(call)
        except ReplayError as error:
            missing[call] = str(error)
    if not missing:
        return passed(f"{len(calls)} calls", calls=sorted(calls))
    rows, reasons = _rows(calls[call] for call in missing), "; ".join(dict.fromkeys(missing.values()))
    return failed(
        f"{len(calls) - len(missing)} of {len(calls)} calls; none for {rows}: {reasons}", remedy, missing=missing
    )


def _rows(types: Iterable[Sequence[str]]) -> str:
    """Returns `Add, Mul`, or `Add, Mul and 3 more`."""
    names = sorted(chain.from_iterable(types))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
