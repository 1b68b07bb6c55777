"""The manifest of a run: what a Run ID in a CSV leads to. `runs/{run_id}.json` beside the CSVs."""

from __future__ import annotations

import calendar
import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from opatlas.errors import OpAtlasError
from opatlas.files import read_own
from opatlas.model.location import public_version
from opatlas.store.csv_files import write_text
from opatlas.store.database import Database
from opatlas.typed_json import DecodeError, decode, without_lone_surrogates

VERSION = 1
#: How the names of an ingest's files in `runs/` begin (opatlas/capture/manifest.py).
INGEST_PREFIX = "ingest-"
LARGEST_BYTES = 64 << 20
#: Endings of files that decide what is measured.
_DECIDING = (".py", ".yaml", ".json")
#: Folders of the packages that hold no code: `database/data` is where databases are.
_NO_CODE = frozenset({"__pycache__", "data"})
#: Packages whose version bears on a duration or on how it is taken.
_PACKAGES = ("opatlas", "torch", "torch_npu", "vllm-ascend", "numpy", "pandas", "pytest", "hypothesis", "transformers")


@dataclass
class Manifest:
    """What a run was.

    Attributes:
        run_id: as in the Run ID column.
        started_at, finished_at: seconds since the epoch; None while it runs, or if it was killed.
        device: the name and facts that the device gave; empty until a row was run.
        other_devices: the same of the other devices of a session that has several.
        options: the options of the session, as given or by default.
        code: digest of the code that measured (`code_digest`).
        host, python, packages: where it ran.
        statuses: rows by what became of them.
        machine_at_start, machine_at_end: load, steal, other processes, CPU quota, frequency governors, clocks of GPUs,
            and what of it disturbed; empty where not known.
    """

    run_id: str
    started_at: float
    options: Mapping[str, Any]
    code: str
    device: Mapping[str, Any] = field(default_factory=dict)
    other_devices: Sequence[Mapping[str, Any]] = ()
    finished_at: float | None = None
    statuses: Mapping[str, int] = field(default_factory=dict)
    machine_at_start: Mapping[str, Any] = field(default_factory=dict)
    machine_at_end: Mapping[str, Any] = field(default_factory=dict)
    host: str = field(default_factory=platform.node)
    system: str = field(default_factory=platform.platform)
    python: str = field(default_factory=platform.python_version)
    packages: Mapping[str, str] = field(default_factory=lambda: installed_versions(_PACKAGES))
    version: int = VERSION

    @property
    def device_names(self) -> frozenset[str]:
        """Names of the devices that the run measured on; empty if the run ended before its first row."""
        named = (device.get("name") for device in (self.device, *self.other_devices))
        return frozenset(str(name) for name in named if name)

    @property
    def torch(self) -> str:
        """Public version of torch ("2.9.0" of "2.9.0+cpu"); "" if torch was not installed_versions."""
        return public_version(self.packages.get("torch", ""))

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Reads a manifest. A field that the file lacks is empty; a field that this version does not know is ignored.

        The run id is that of the file's name, to which the Run ID of a row leads.

        Raises:
            OpAtlasError: the file cannot be read, or is no manifest.
        """
        try:
            text = read_own(path, LARGEST_BYTES)
        except OSError as error:
            raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): check its permissions") from None
        try:
            stored = decode(text, _Stored, str(path))
        except DecodeError as error:
            raise OpAtlasError(
                f"{path}: not the manifest of a run ({error.problem}): restore it, or move it away"
            ) from None
        values = {field.name: getattr(stored, field.name) for field in fields(cls)}
        return cls(**{**values, "run_id": path.stem})

    @staticmethod
    def path(database: Database, run_id: str) -> Path:
        """Where the manifest of a run is."""
        return database.runs_dir / f"{run_id}.json"

    def write(self, database: Database) -> Path:
        """Writes the manifest, replacing what stood there. Raises OpAtlasError."""
        path = self.path(database, self.run_id)
        text = json.dumps(asdict(self), indent=2, default=str)
        write_text(path, (without_lone_surrogates(text) or text) + "\n")
        return path


#: Seconds since the epoch, before the year 10000.
_Time = Annotated[float, Meta(ge=0, lt=253402300800)]


@dataclass(kw_only=True)
class _Stored(Manifest):
    """A manifest as its file has it: what the file lacks is not known, and not a fact of this machine."""

    started_at: _Time
    run_id: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    finished_at: _Time | None = None
    host: str = ""
    system: str = ""
    python: str = ""
    packages: Mapping[str, str] = field(default_factory=dict)


def manifest_paths(database: Database) -> list[Path]:
    """Paths of the manifests of runs, sorted; those of ingests (`ingest-*.json`) have another schema."""
    return sorted(path for path in database.runs_dir.glob("*.json") if not path.name.startswith(INGEST_PREFIX))


def read_manifests(database: Database, problems: list[str]) -> dict[str, Manifest]:
    """Reads the manifests of a database.

    Args:
        problems: gets a sentence for each manifest that cannot be read; the others are read all the same.

    Returns:
        The manifests by run id, in the order of the run ids.
    """
    found = {}
    for path in manifest_paths(database):
        try:
            found[path.stem] = Manifest.read(path)
        except OpAtlasError as error:
            problems.append(str(error))
    return found


def code_digest(directories: Iterable[Path]) -> str:
    """Digest of all files under some directories that decide what is measured, and how: names and contents.

    These are code, and the tables that code reads (the catalog of theory rows, the calls of kernels); databases below
    the directories are left out.
    """
    digest = hashlib.sha256()
    for directory in directories:
        for path in sorted(_deciding(directory)):
            digest.update(path.relative_to(directory.parent).as_posix().encode() + b"\0")
            digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def _deciding(directory: Path) -> Iterator[Path]:
    for name, folders, files in os.walk(directory):
        folders[:] = [folder for folder in folders if folder not in _NO_CODE]
        yield from (Path(name, file) for file in files if file.endswith(_DECIDING))


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of those packages that are installed_versions."""
    versions = {}
    for name in packages:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            # Absent is a fact too: the manifest simply does not name it.
            continue
    return versions


#: Greater is newer. The run id comes last, so that two different runs are never equally new.
Age = tuple[int, float, str]
_NO_RUN, _UNKNOWN_TIME, _KNOWN_TIME = range(3)
_TIME = re.compile(r"([0-9]{8}T[0-9]{6})(?=-|$)")
#: Clocks of machines that are set by the network differ by seconds. One that differs by more was set by nobody.
_CLOCK_TOLERANCE_S = 600.0


class RunOrder:
    """Compares runs by the time at which they began.

    The time is that of the run's manifest, else that in its id, which is in UTC. A run whose time lies in the future
    was made on a machine whose clock was ahead: its time says nothing, so the run is older than all runs whose time is
    known.

    Attributes:
        ahead: ids of the runs that were compared and whose time lies in the future.
    """

    def __init__(self, started_at: Mapping[str, float] | None = None, *, now: float | None = None) -> None:
        """
        Args:
            started_at: seconds since the epoch at which runs began, by run id, as their manifests say.
            now: seconds since the epoch; default: this machine's clock.
        """
        self._started_at = started_at or {}
        self._latest = (time.time() if now is None else now) + _CLOCK_TOLERANCE_S
        self._ages: dict[str, Age] = {}
        self.ahead: set[str] = set()

    def age(self, run_id: str) -> Age:
        """How new a run is; "" is no run, which is older than any."""
        if run_id not in self._ages:
            self._ages[run_id] = self._age(run_id)
        return self._ages[run_id]

    def _age(self, run_id: str) -> Age:
        if not run_id:
            return _NO_RUN, 0.0, ""
        started_at = self._started_at.get(run_id, run_id_time(run_id))
        if started_at is None:
            return _UNKNOWN_TIME, 0.0, run_id
        if started_at > self._latest:
            self.ahead.add(run_id)
            return _UNKNOWN_TIME, started_at, run_id
        return _KNOWN_TIME, started_at, run_id


def run_id_time(run_id: str) -> float | None:
    """Seconds since the epoch at the start of `20261121T163006-1f0c9a`; None for an id of another form."""
    found = _TIME.match(run_id)
    try:
        return float(calendar.timegm(time.strptime(found[1], "%Y%m%dT%H%M%S"))) if found else None
    except (OverflowError, ValueError):
        return None
