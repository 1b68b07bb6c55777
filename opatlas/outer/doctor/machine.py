"""Probes of the machine: packages, CPU and GPUs, the database."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from importlib import metadata
from pathlib import Path

from opatlas.data import journal
from opatlas.data.database import Database, SessionLock
from opatlas.data.header import read_header
from opatlas.errors import OpAtlasError, UsageError
from opatlas.files import expect_folder
from opatlas.installation import CHECKOUT
from opatlas.row import location, versions
from opatlas.run.devices.device import available_devices, database_name
from opatlas.text import first_line

from .probe import State, Target, Verdict, failed, passed, skipped

_LEAST_FREE = 1 << 30
_NAMED = 3
_OTHER_DATABASE = "name another folder with --database-path"
_INSTALL = (
    "pip install 'opatlas[bench]'"
    if CHECKOUT is None
    else "pip install -c constraints.txt -e '.[bench]' in the checkout"
)


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


def cpu(target: Target) -> Verdict:
    """Imports torch, multiplies on the CPU, and measures a row."""
    # Without torch this module is imported, too.
    from .measure import measure_row

    return measure_row("cpu", "wall-clock")


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

    facts = {"nvidia_smi": driver, "devices": nodes, "torch_cuda": str(torch.version.cuda)}
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


def database(target: Target) -> Verdict:
    """Looks for room on the disk of the database, takes its lock, and reads the headers of its CSVs."""
    try:
        path = database_path(target)
    except OpAtlasError as error:
        return failed(str(error), "name the folder with --database-path")
    try:
        expect_folder(path, "", may_be_made=True)
    except UsageError as error:
        return failed(str(error), _OTHER_DATABASE)
    room = _room(existing_folder(path), f"make room, or {_OTHER_DATABASE}")
    if room.state is State.FAIL:
        return room
    if not path.exists():
        try:
            with tempfile.TemporaryFile(dir=existing_folder(path)):
                pass
        except OSError as error:
            return failed(f"{path} cannot be made ({error.strerror})", _OTHER_DATABASE)
        return passed(f"{path}, new", path=str(path))
    found = Database(path)
    found.folders()
    # The doctor takes the lock like a session, and fails like a session.
    lock = SessionLock(found, run_id="doctor", command="opatlas doctor")
    lock.acquire()
    lock.release()
    broken = []
    for kernel_type in found.kernel_types():
        try:
            read_header(found.csv_path(kernel_type))
        except OpAtlasError as error:
            broken.append(str(error))
    journals = [str(left) for left in journal.journals(found)]
    facts = {"path": str(path), "journals": journals}
    if broken:
        more = f" (and {len(broken) - _NAMED} more)" if len(broken) > _NAMED else ""
        return failed("; ".join(broken[:_NAMED]) + more, **facts)
    left = f", {len(journals)} journals to merge" if journals else ""
    return passed(f"{path}, {len(found.kernel_types())} kernel types{left}", **facts)


def _room(folder: Path, remedy: str) -> Verdict:
    usage = shutil.disk_usage(folder)
    detail = f"{folder}, {usage.free / 1e9:.1f} of {usage.total / 1e9:.1f} GB free"
    facts = {"free_bytes": usage.free, "total_bytes": usage.total, "folder": str(folder)}
    return passed(detail, **facts) if usage.free >= _LEAST_FREE else failed(detail, remedy, **facts)


def database_path(target: Target) -> Path:
    """Returns the folder that was named, or the default of the device. Raises OpAtlasError."""
    if target.database is not None:
        return target.database
    return location.default_path(database_name(available_devices(target.device or None)), versions.detect())


def existing_folder(path: Path) -> Path:
    """Returns the path, or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.resolve().parents) if folder.exists())
