"""Probes of where things are written: the database, its disk, the folder for temporary files."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from bench.devices.at_hand import database_name, devices_at_hand
from bench.doctor.verdict import Fact, Target, Verdict, failed, passed
from database import journal, layout, versions
from database.commands import UsageError
from database.errors import OpAtlasError
from database.folder import expect_folder
from database.header import read_header
from database.session_lock import SessionLock
from database.store import Database

_LEAST_FREE = 1 << 30
_NAMED = 3


def database(target: Target) -> Verdict:
    try:
        path = database_path(target)
    except OpAtlasError as error:
        return failed(str(error), "these are options of pytest bench/; the doctor has --database-path of them")
    try:
        expect_folder(path, "", may_be_made=True)
    except UsageError as error:
        return failed(str(error), "name another one with --database-path")
    if not path.exists():
        try:
            with tempfile.TemporaryFile(dir=_existing(path)):
                pass
        except OSError as error:
            return failed(
                f"{path} is not there, and cannot be made ({error.strerror})", "name one with --database-path"
            )
        return passed(f"{path} is not there yet, and can be made", path=str(path))
    found = Database(path)
    found.folders()
    # Writes as a session does, and refuses what a session would be refused.
    lock = SessionLock(found, run_id="doctor", command="python -m bench doctor")
    lock.acquire(0, print)
    lock.release()
    broken = []
    for kernel_type in found.kernel_types():
        try:
            read_header(found.csv_path(kernel_type))
        except OpAtlasError as error:
            broken.append(str(error))
    journals = [str(left) for left in journal.all_of(found)]
    facts: dict[str, Fact] = {"path": str(path), "journals": journals}
    if broken:
        more = f" (and {len(broken) - _NAMED} more)" if len(broken) > _NAMED else ""
        return failed("; ".join(broken[:_NAMED]) + more, **facts)
    left = f"; {len(journals)} journals of killed sessions, which the next one merges" if journals else ""
    return passed(f"{path}: {len(found.kernel_types())} kernel types, writable, not in use{left}", **facts)


def disk(target: Target) -> Verdict:
    try:
        path = database_path(target)
    except OpAtlasError:  # the probe `database` tells it
        path = layout.ROOT
    return _room(_existing(path), "make room, or name another folder with --database-path")


def temporary(target: Target) -> Verdict:
    folder = Path(tempfile.gettempdir())
    with tempfile.TemporaryFile(dir=folder) as file:
        # Rows of concurrent sessions take turns by a lock there.
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    found = _room(folder, "make room, or set TMPDIR to another folder")
    wanted = os.environ.get("TMPDIR")
    if wanted and folder.resolve() != Path(wanted).resolve():
        # Python passes over a folder that it cannot write.
        return replace(found, detail=f"{found.detail}; TMPDIR={wanted} cannot be written, and is not used")
    return found


def _room(folder: Path, remedy: str) -> Verdict:
    usage = shutil.disk_usage(folder)
    detail = f"{usage.free / 1e9:.1f} of {usage.total / 1e9:.1f} GB free at {folder}"
    facts: dict[str, Fact] = {"free_bytes": usage.free, "total_bytes": usage.total, "folder": str(folder)}
    return passed(detail, **facts) if usage.free >= _LEAST_FREE else failed(detail, remedy, **facts)


def database_path(target: Target) -> Path:
    """The folder that was named, or the default of the device. Raises OpAtlasError."""
    if target.database is not None:
        return target.database
    return layout.default_path(database_name(devices_at_hand(target.device or None)), versions.detect())


def _existing(path: Path) -> Path:
    """The path, or the first folder above it that is there."""
    return next(folder for folder in (path, *path.resolve().parents) if folder.exists())
