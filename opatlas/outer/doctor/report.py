"""The report for the maintainers: a zip file of the findings, the files of probes, and the last run of a database."""

from __future__ import annotations

import json
import os
import re
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from opatlas.data import log
from opatlas.data.csv_files import write_atomically
from opatlas.data.database import Database
from opatlas.data.manifest import manifest_paths
from opatlas.errors import OpAtlasError
from opatlas.files import UnsafePath, read_safely

_FOUND = "doctor.json"
#: The largest file in the report. Larger files are listed as left out.
_MOST_BYTES = 16 << 20
#: The largest sum of all files, before compression.
_MOST_BYTES_IN_ALL = 96 << 20
#: The files of a kept profile in the report: sources of durations, without raw records.
_PROFILE_FILES = re.compile(r"(op_summary|kernel_details|task_time).*\.csv|launched\.jsonl(\.unreadable)?")
#: The number of session reports in the zip file: the newest ones, because a report's name does not tell its run.
_REPORTS = 4


def expect_report(path: Path) -> None:
    """Makes the folder of a report. Raises OpAtlasError where a report cannot be written."""
    if path.is_dir():
        raise OpAtlasError(f"--report {path} is a folder: name a file in it, such as {path / 'doctor.zip'}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise OpAtlasError(f"--report {path} cannot be written ({error.strerror}): name another folder") from None


def write_report(
    path: Path, found: Mapping[str, Any], files: Path, database: Path | None
) -> tuple[list[str], list[str]]:
    """Writes the zip file.

    Args:
        found: the findings, in types of JSON.
        files: the folder of the files that probes left.
        database: the database whose last run and kept profiles go in; None: no database.

    Returns:
        The names in the zip file, and the files that were left out, each with the reason.

    Raises:
        OpAtlasError: the zip file cannot be written.
    """
    names, left_out, room = [_FOUND], list[str](), _MOST_BYTES_IN_ALL

    def write(temporary: str) -> None:
        nonlocal room
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as report:
            report.writestr(_FOUND, json.dumps(found, indent=1) + "\n")
            for name, source in (*_probe_files(files), *(_database_files(database) if database is not None else ())):
                try:
                    size = source.stat().st_size
                    if size > min(_MOST_BYTES, room):
                        left_out.append(f"{source} ({size >> 20:,} MiB)")
                        continue
                    content = read_safely(source, _MOST_BYTES)
                except (UnsafePath, OSError) as error:
                    left_out.append(f"{source} ({error})")
                    continue
                room -= len(content)
                report.writestr(name, content)
                names.append(name)

    write_atomically(path, write)
    return names, left_out


def _probe_files(files: Path) -> Iterator[tuple[str, Path]]:
    for path in _files_below(files):
        yield f"probes/{path.relative_to(files)}", path


def _database_files(path: Path) -> Iterator[tuple[str, Path]]:
    """Yields manifest and history of the last run, the last reports, and kept profiles of rows."""
    database = Database(path)
    for manifest in manifest_paths(database)[-1:]:
        for path in (manifest, log.file_path(database, manifest.stem)):
            if path.is_file():
                yield f"database/runs/{path.name}", path
    reports = sorted(_files_below(database.reports_dir), key=lambda report: report.stat().st_mtime)
    for report in reports[-_REPORTS:]:
        yield f"database/reports/{report.name}", report
    for kept in _files_below(database.profiles_dir):
        if _PROFILE_FILES.fullmatch(kept.name):
            yield f"database/profiles/{kept.relative_to(database.profiles_dir)}", kept


def _files_below(folder: Path) -> list[Path]:
    """Returns the regular files at any depth, sorted; links are not followed."""
    found = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sorted(path for path in found if path.is_file() and not path.is_symlink())
