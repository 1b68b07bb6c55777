"""Probes of Python, packages, torch, the CPU and GPUs."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from opatlas.installation import CHECKOUT
from opatlas.outer.doctor.probe import Fact, Target, Verdict, failed, passed, skipped
from opatlas.text import first_line

if TYPE_CHECKING:
    from opatlas.run.devices.device import DeviceSpec

#: The versions of Python that the tests run on.
_OLDEST, _NEWEST = (3, 10), (3, 13)
_INSTALL = (
    "pip install 'opatlas[bench]'"
    if CHECKOUT is None
    else "pip install -c constraints.txt -e '.[bench]' in the checkout"
)


def python(target: Target) -> Verdict:
    """Compares the version of Python with the supported versions."""
    here = sys.version_info[:2]
    facts: dict[str, Fact] = {"executable": sys.executable, "prefix": sys.prefix, "platform": platform.platform()}
    detail = f"{platform.python_version()}, {sys.prefix}"
    if _OLDEST <= here <= _NEWEST:
        return passed(detail, **facts)
    wanted = "{}.{} to {}.{}".format(*_OLDEST, *_NEWEST)
    return failed(detail, f"use Python {wanted}: make bench PYTHON=/path/to/python", **facts)


def packages(target: Target) -> Verdict:
    """Compares installed versions with the ranges that OpAtlas and its extra `bench` require."""
    from packaging.requirements import Requirement

    installed = {found.metadata["Name"]: found.version for found in metadata.distributions()}
    try:
        requires = metadata.requires("opatlas") or []
    except metadata.PackageNotFoundError:
        return failed("opatlas is not installed in this Python", _INSTALL, installed=installed)
    wrong, versions = [], {}
    for requirement in map(Requirement, requires):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": "bench"}):
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is not installed")
            continue
        versions[requirement.name] = version
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} {version} is not {requirement.specifier}")
    if wrong:
        return failed("; ".join(wrong), _INSTALL, installed=installed)
    versions["opatlas"] = metadata.version("opatlas")
    shown = [f"{name} {versions[name]}" for name in ("opatlas", "torch", "pandas", "pytest") if name in versions]
    return passed(", ".join(shown), installed=installed)


def torch(target: Target) -> Verdict:
    """Imports torch."""
    import torch

    version, config = str(torch.__version__), torch.__config__.show()
    detail = f"{version}, {torch.get_num_threads()} threads"
    return passed(detail, version=version, file=torch.__file__, config=config)


def cpu(target: Target) -> Verdict:
    """Multiplies on the CPU, and measures a row."""
    from opatlas.run.devices.device import DeviceSpec

    return measure_row(DeviceSpec("cpu"), "wall-clock")


def measure_row(spec: DeviceSpec, instrument: str) -> Verdict:
    """Opens a device, checks a product of matrices, and measures a small row."""
    from opatlas.outer.doctor.sample_rows import SAMPLES, job_of
    from opatlas.row.quality import typical_mean
    from opatlas.row.status import Status
    from opatlas.run.instruments.instrument import MeasureSettings
    from opatlas.run.runner import Runner

    runner = Runner(spec, MeasureSettings(repeat_count=SAMPLES, cache="warm", instrument=instrument))
    runner.probe()
    description = runner.describe()
    facts = {name: str(fact) for name, fact in description.facts.items()}
    outcome = runner.run(job_of("Add"))
    if outcome.status is not Status.MEASURED or outcome.measurement is None:
        found = f"{description.name}, Add 16,64;16,64: {outcome.status}: {outcome.reason}"
        return failed(found, facts=facts, traceback=outcome.detail)
    taken_us = typical_mean(outcome.measurement.samples_us)
    return passed(f"{description.name}, Add 16,64;16,64: {taken_us:.1f} us ({instrument})", facts=facts)


def cuda(target: Target) -> Verdict:
    """Runs nvidia-smi, and checks a product of matrices on the GPU."""
    from opatlas.run.devices.cuda import KIND
    from opatlas.run.devices.device import probe

    smi = shutil.which("nvidia-smi")
    nodes = [str(path) for path in sorted(Path("/dev").glob("nvidia[0-9]*"))]
    if smi is None and not nodes and target.kind != KIND.name:
        return skipped("no NVIDIA GPU")
    driver = ""
    if smi is not None:
        command = [smi, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        driver = done.stdout.strip()
        if done.returncode:
            return failed(
                f"nvidia-smi: exit code {done.returncode}: {first_line(done.stdout + done.stderr)}",
                "install the NVIDIA driver; in a container, start it with --gpus all",
            )
    import torch

    facts: dict[str, Fact] = {"nvidia_smi": driver, "devices": nodes, "torch_cuda": str(torch.version.cuda)}
    if torch.version.cuda is None:
        return failed(f"torch {torch.__version__} without CUDA", "install a torch that was built with CUDA", **facts)
    if not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return failed(
            f"no GPU in torch.cuda (CUDA_VISIBLE_DEVICES is {visible!r}; nvidia-smi: {driver or 'nothing'})",
            "install a driver that is new enough for this torch's CUDA, or unset CUDA_VISIBLE_DEVICES",
            **facts,
        )
    probe(torch.device(KIND.name, 0))
    return passed(f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}", **facts)
