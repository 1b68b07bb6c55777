"""Probes of the machine: the device, packages, CPU and GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from opatlas.installation import CHECKOUT
from opatlas.row.quality import typical_mean
from opatlas.row.status import Status
from opatlas.run.devices.cuda import KIND
from opatlas.run.devices.device import available_devices, device_environment
from opatlas.run.instruments.instrument import MeasureSettings
from opatlas.text import first_line

from .measure import SAMPLES, job_of
from .probe import Target, Verdict, failed, passed, skipped

_INSTALL = (
    "pip install 'opatlas[bench]'"
    if CHECKOUT is None
    else "pip install -c constraints.txt -e '.[bench]' in the checkout"
)


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
    try:
        requires = metadata.requires("opatlas") or []
    except metadata.PackageNotFoundError:
        return failed("opatlas is not installed in this Python", _INSTALL, installed=installed)
    wrong = []
    for each in map(Requirement, requires):
        if each.marker is not None and not each.marker.evaluate({"extra": "bench"}):
            continue
        try:
            version = metadata.version(each.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{each.name} is not installed")
            continue
        if not each.specifier.contains(version, prereleases=True):
            wrong.append(f"{each.name} {version} is not {each.specifier}")
    if wrong:
        return failed("; ".join(wrong), _INSTALL, installed=installed)
    shown = [f"{name} {installed[name]}" for name in ("opatlas", "torch", "pandas", "pytest") if name in installed]
    return passed(", ".join(shown), installed=installed)


def cpu(target: Target) -> Verdict:
    """Imports torch, multiplies on the CPU, and measures a row."""
    return measure_row("cpu", "wall-clock")


def cuda(target: Target) -> Verdict:
    """Runs nvidia-smi, and checks a product of matrices on the GPU."""
    from opatlas.run.devices.device import probe

    smi = shutil.which("nvidia-smi")
    if smi is None and not list(Path("/dev").glob("nvidia[0-9]*")) and target.kind != KIND.name:
        return skipped("no NVIDIA GPU")
    driver = "nothing"
    if smi is not None:
        command = [smi, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        if done.returncode:
            return failed(
                f"nvidia-smi: exit code {done.returncode}: {first_line(done.stdout + done.stderr)}",
                "install the NVIDIA driver; in a container, start it with --gpus all",
            )
        driver = done.stdout.strip()
    import torch

    if torch.version.cuda is None:
        return failed(f"torch {torch.__version__} without CUDA", "install a torch that was built with CUDA")
    if not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return failed(
            f"no GPU in torch.cuda (CUDA_VISIBLE_DEVICES is {visible!r}; nvidia-smi: {driver})",
            "install a driver that is new enough for this torch's CUDA, or unset CUDA_VISIBLE_DEVICES",
        )
    probe(torch.device(KIND.name, 0))
    return passed(f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}", nvidia_smi=driver)


def measure_row(name: str, instrument: str) -> Verdict:
    """Opens a device in this process, checks a product of matrices, and measures a small row."""
    from opatlas.run.runner import Runner

    settings = MeasureSettings(repeat_count=SAMPLES, cache="warm", instrument=instrument)
    runner = Runner(available_devices(name)[0], settings)
    runner.probe()
    description = runner.describe()
    facts = {fact: str(value) for fact, value in description.facts.items()}
    outcome = runner.run(job_of("Add"))
    row = f"{description.name}, Add 16,64;16,64"
    if outcome.status is not Status.MEASURED or outcome.measurement is None:
        return failed(f"{row}: {outcome.status}: {outcome.reason}", facts=facts, traceback=outcome.detail)
    return passed(f"{row}: {typical_mean(outcome.measurement.samples_us):.1f} us ({instrument})", facts=facts)
