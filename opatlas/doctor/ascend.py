"""Probes of what an Ascend NPU stands on, from the device files up."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from opatlas.devices.npu_smi import list_chips
from opatlas.devices.torch_npu import import_torch_npu, set_env_scripts
from opatlas.doctor.machine import measured
from opatlas.doctor.verdict import (
    Fact,
    Target,
    Verdict,
    failed,
    passed,
    skipped,
)
from opatlas.isolation.msprof.command import msprof_executable
from opatlas.model.versions import cann_version
from opatlas.text import first_line, last_line

_DEVICE_FILES = Path("/dev")
_ASCEND = Path("/usr/local/Ascend")
#: What every process that opens a device opens too.
_MANAGERS = ("davinci_manager", "devmm_svm", "hisi_hdc")
_HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
#: Plenty for what only prints.
_PRINTS_S = 30


def signs_of_ascend() -> list[str]:
    """What on this machine points to an NPU, whether it works or not."""
    signs = [str(path) for path in (_ASCEND, *sorted(_DEVICE_FILES.glob("davinci*"))) if path.exists()]
    signs += [name for name in _HOMES if os.environ.get(name)]
    signs += [tool for tool in ("npu-smi", "msprof") if shutil.which(tool)]
    return signs + [name for name in ("torch_npu", "vllm_ascend") if find_spec(name)]


def npu_devices(target: Target) -> Verdict:
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
    return passed(f"{len(nodes)} ({names}), with {', '.join(_MANAGERS)}", devices=[str(path) for path in nodes])


def npu_smi(target: Target) -> Verdict:
    executable = shutil.which("npu-smi")
    if executable is None:
        return failed("npu-smi is not on PATH", "install the NPU driver, or mount /usr/local/bin/npu-smi of the host")
    done = subprocess.run([executable, "info"], capture_output=True, text=True, timeout=_PRINTS_S, check=False)
    said = (done.stdout + done.stderr).strip()
    if done.returncode:
        return failed(
            f"`npu-smi info` ends with exit code {done.returncode}: {first_line(said)}",
            "the driver does not run: look into `dmesg` and /var/log/npu, or mount /usr/local/Ascend/driver",
            info=said,
        )
    found = [f"{chip.logic}: {chip.name}" for chip in list_chips()]
    if not found:
        return failed(
            "`npu-smi info -m` shows no chip", "send us the report (--report): its table is not known", info=said
        )
    return passed(f"{len(found)} chips ({found[0]} ...)", info=said, chips=found)


def npu_driver(target: Target) -> Verdict:
    path = _ASCEND / "driver" / "version.info"
    if not path.is_file():
        return failed(f"{path} is missing", f"install the NPU driver; in a container, mount {path.parent}")
    text = path.read_text(encoding="utf-8", errors="replace")
    version = re.search(r"^\s*version\s*=\s*(\S+)", text, flags=re.MULTILINE | re.IGNORECASE)
    return passed(f"{version[1] if version else 'of an unknown version'} ({path})", version_info=text)


def cann(target: Target) -> Verdict:
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
            f"CANN {version} is installed, but its environment is not set ({' and '.join(_HOMES)} are empty)",
            f"source {scripts[0] if scripts else _ASCEND / 'ascend-toolkit/set_env.sh'}",
        )
    gone = [f"{name}={home}" for name, home in homes.items() if not Path(home).is_dir()]
    if gone:
        return failed(f"{', '.join(gone)} is no folder", "source the set_env.sh of the CANN that is installed")
    libraries = [entry for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]
    if not any(entry.startswith(home) for entry in libraries for home in homes.values()):
        return failed(
            f"CANN {version}: LD_LIBRARY_PATH has no folder of it",
            f"source {scripts[0]}" if scripts else "source its set_env.sh",
        )
    return passed(f"{version}, {homes.get(_HOMES[0], next(iter(homes.values())))}", version=version, homes=homes)


def torch_npu(target: Target) -> Verdict:
    module = import_torch_npu()
    import torch

    count = torch.get_device_module("npu").device_count()
    facts: dict[str, Fact] = {"version": str(module.__version__), "file": str(module.__file__), "devices": count}
    if not count:
        visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES")
        return failed(
            f"{module.__version__} is imported and sees no device (ASCEND_RT_VISIBLE_DEVICES is {visible!r})",
            "mend what failed above first; or unset ASCEND_RT_VISIBLE_DEVICES",
            **facts,
        )
    return passed(f"{module.__version__}, sees {count} devices", **facts)


def npu(target: Target) -> Verdict:
    from opatlas.devices.discovery import available_devices

    return measured(
        available_devices(target.device if target.kind == "npu" and target.device else "npu")[0], "npu-events"
    )


def msprof(target: Target) -> Verdict:
    executable = msprof_executable()
    done = subprocess.run([executable, "--help"], capture_output=True, text=True, timeout=_PRINTS_S, check=False)
    said = (done.stdout + done.stderr).strip()
    if "--output" not in said:
        return failed(
            f"`{executable} --help` does not tell its options (exit code {done.returncode}): {last_line(said)}",
            "source CANN's set_env.sh; --instrument npu-events does without msprof",
            help=said,
        )
    return passed(executable, help=said)


def vllm_ascend(target: Target) -> Verdict:
    spec = find_spec("vllm_ascend")
    if spec is None:
        return skipped("vllm-ascend is not installed", "--versions vllm=V names the one that a database belongs to")
    try:
        version = metadata.version("vllm-ascend")
    except metadata.PackageNotFoundError:
        version = "of an unknown version"
    return passed(f"{version}, {(spec.submodule_search_locations or ['?'])[0]}", version=version)
