"""What a machine needs before it can measure: the device, packages, drivers, CANN, and the operators that replays call.

A replay looks an operator up when the first row needs it. The stage `operators` looks up all of them, in a process with
the environment and the device of a replay, and so names the kernel types whose rows would be skipped.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from opatlas.installation import CHECKOUT
from opatlas.row.errors import ReplayError
from opatlas.row.versions import cann_version
from opatlas.run.devices import cuda as gpu
from opatlas.run.devices import npu_operators
from opatlas.run.devices.device import available_devices, device_environment, open_device
from opatlas.run.devices.npu import KIND, import_torch_npu, set_env_scripts
from opatlas.run.devices.npu_smi import list_chips
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.run.registry import replay_spec, replays_of_bench
from opatlas.text import exception_line, first_line

from .measure import replay
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


def device(target: Target) -> Verdict:
    """Finds the devices that `pytest bench/` would replay on."""
    found = available_devices(target.device or None)
    names = ", ".join(sorted({spec.name or spec.kind for spec in found}))
    detail = f"{len(found)} x {found[0].kind} ({names})"
    return passed(detail, kind=found[0].kind, environment=device_environment(found[0]))


def packages(target: Target) -> Verdict:
    """Compares installed versions with the ranges that OpAtlas and its extra `bench` require."""
    from packaging.requirements import Requirement

    installed = {found.metadata["Name"]: found.version for found in metadata.distributions()}
    wrong = []
    for each in map(Requirement, metadata.requires("opatlas") or []):
        if each.marker is None or each.marker.evaluate({"extra": "bench"}):
            version = installed.get(each.name) or _version(each.name)
            if not version or not each.specifier.contains(version, prereleases=True):
                wrong.append(f"{each.name} {version or '(none)'} is not {each.specifier}")
    if wrong:
        return failed("; ".join(wrong), _INSTALL, installed=installed)
    shown = [f"{name} {installed[name]}" for name in ("opatlas", "torch", "pandas", "pytest") if name in installed]
    return passed(", ".join(shown), installed=installed)


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def cuda(target: Target) -> Verdict:
    """Runs nvidia-smi, and checks a product of matrices on the GPU."""
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
    from opatlas.run.devices.device import probe

    probe(torch.device(gpu.KIND.name, 0))
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
    found = replay(target, KIND.events)
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
