"""Probes of shared resources: cores, memory, caches, load, the database, its disk, temporary files."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from time import perf_counter

from opatlas.errors import OpAtlasError, UsageError
from opatlas.files import expect_folder
from opatlas.outer.doctor.probe import Fact, Target, Verdict, failed, passed, skipped
from opatlas.row import location, versions
from opatlas.run.devices.cpu import CpuFlush, plan_flush
from opatlas.run.devices.device import available_devices, database_name, device_states
from opatlas.run.devices.system import (
    MachineWatch,
    affinity_cores,
    available_cores,
    available_memory,
    cpu_quota,
    machine_state,
    memory_limit,
    needed_cores,
    usable_cores,
)

_LEAST_FREE = 1 << 30
_FLUSHES = 7
#: A slower flush adds more than a second to a row of twenty samples.
_SLOW_FLUSH_MS = 50.0
_NAMED = 3
_OTHER_TEMPORARY = "set TMPDIR to another folder"
_OTHER_DATABASE = "name another folder with --database-path"


def database(target: Target) -> Verdict:
    """Takes the lock of the database, and reads the headers of its CSVs."""
    # The other probes here need no pandas.
    from opatlas.data import journal
    from opatlas.data.database import Database, SessionLock
    from opatlas.data.header import read_header

    try:
        path = database_path(target)
    except OpAtlasError as error:
        return failed(str(error), "name the folder with --database-path")
    try:
        expect_folder(path, "", may_be_made=True)
    except UsageError as error:
        return failed(str(error), _OTHER_DATABASE)
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
    facts: dict[str, Fact] = {"path": str(path), "journals": journals}
    if broken:
        more = f" (and {len(broken) - _NAMED} more)" if len(broken) > _NAMED else ""
        return failed("; ".join(broken[:_NAMED]) + more, **facts)
    left = f", {len(journals)} journals to merge" if journals else ""
    return passed(f"{path}, {len(found.kernel_types())} kernel types{left}", **facts)


def disk(target: Target) -> Verdict:
    """Looks for room on the disk of the database."""
    try:
        path = database_path(target)
    except OpAtlasError:  # the probe `database` reports it
        path = location.ROOT
    return _room(existing_folder(path), f"make room, or {_OTHER_DATABASE}")


def temporary(target: Target) -> Verdict:
    """Writes and locks a file in the folder for temporary files, and looks for room there."""
    folder = Path(tempfile.gettempdir())
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"opatlas")
            file.flush()
            # A device is locked with a record lock in this folder (opatlas/run/devices/device_lock.py).
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return failed(f"{folder}: no file can be written and locked ({error.strerror})", _OTHER_TEMPORARY)
    found = _room(folder, f"make room, or {_OTHER_TEMPORARY}")
    wanted = os.environ.get("TMPDIR")
    if wanted and folder.resolve() != Path(wanted).resolve():
        # Python skips a folder that it cannot write.
        return replace(found, detail=f"{found.detail}; not TMPDIR={wanted}, which cannot be written")
    return found


def _room(folder: Path, remedy: str) -> Verdict:
    usage = shutil.disk_usage(folder)
    detail = f"{folder}, {usage.free / 1e9:.1f} of {usage.total / 1e9:.1f} GB free"
    facts: dict[str, Fact] = {"free_bytes": usage.free, "total_bytes": usage.total, "folder": str(folder)}
    return passed(detail, **facts) if usage.free >= _LEAST_FREE else failed(detail, remedy, **facts)


def database_path(target: Target) -> Path:
    """Returns the folder that was named, or the default of the device. Raises OpAtlasError."""
    if target.database is not None:
        return target.database
    return location.default_path(database_name(available_devices(target.device or None)), versions.detect())


def existing_folder(path: Path) -> Path:
    """Returns the path, or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.resolve().parents) if folder.exists())


def limits(target: Target) -> Verdict:
    """Reads how many cores and how much memory this process may use."""
    quota, limit, left = cpu_quota(), memory_limit(), available_memory()
    usable = affinity_cores()
    cores = f"{available_cores()} of {usable} cores" if available_cores() < usable else f"{usable} cores"
    cpu = "no CPU quota" if quota is None else f"CPU quota {quota:g} cores"
    memory = "no memory limit" if limit is None else f"memory limit {limit / 2**30:.1f} GiB"
    if left is not None:
        memory += f", {left / 2**30:.1f} GiB of it left"
    return passed(f"{cores}, {cpu}, {memory}", cpu_quota=quota, memory_limit_bytes=limit, memory_left_bytes=left)


def flush(target: Target) -> Verdict:
    """Times a flush of the CPU's caches, which precedes each cold sample."""
    if (kind := available_devices(target.device or None)[0].kind) != "cpu":
        return skipped(f"a {kind} flushes its L2 cache")
    import torch

    threads = available_cores()
    torch.set_num_threads(threads)
    plan = plan_flush(usable_cores(), threads)
    flushed, row, took_ms = CpuFlush(plan), [torch.ones(1 << 18)], []
    for _ in range(_FLUSHES):
        start = perf_counter()
        flushed(row)
        took_ms.append(1000 * (perf_counter() - start))
    ms = median(took_ms)
    size = "unknown size" if plan.cache_bytes is None else f"{plan.cache_bytes >> 20} MiB"
    hint = " (not with --cache warm)" if ms > _SLOW_FLUSH_MS else ""
    detail = f"{plan.caches} x {size} of last-level cache, {ms:.1f} ms a sample{hint}"
    return passed(detail, read_bytes=plan.read_bytes, flush_ms=ms)


def disturbances(target: Target) -> Verdict:
    """Looks for load and other disturbances that would make durations noisy now."""
    machine = machine_state()
    devices = available_devices(target.device or None)
    gpus = device_states(devices, MachineWatch().own_processes(), opened=False)
    found = [*machine.disturbances(needed_cores(devices)), *(phrase for gpu in gpus for phrase in gpu.disturbances())]
    if found:
        return failed(", ".join(found), "wait until the load is gone, or measure elsewhere: durations are noisy")
    return passed(machine.load or "no load reported", load=machine.load_1min)
