"""The manifest of a run, `runs/{run_id}.json`: device, software, options and statuses; and the order of runs.

The Run ID of a row leads to the manifest of a session, its Profiling Run ID to that of an ingest,
`runs/ingest-{time}-{hex}.json`. The samples of an ingest beside it (`.jsonl.gz`, opatlas/capture/cases.py) begin with
the manifest and are written first, so that an ingest that is killed between both files is still known.
"""

from __future__ import annotations

import calendar
import gzip
import hashlib
import json
import os
import platform
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from opatlas import formats
from opatlas.data.csv_files import write_text
from opatlas.data.database import Database
from opatlas.errors import OpAtlasError, noted
from opatlas.files import BROKEN_GZIP, open_safely, read_safely
from opatlas.row.location import public_version
from opatlas.row.versions import Kind, Versions, kinds, package_version
from opatlas.typed_json import DecodeError, decode

_Facts = TypeVar("_Facts", bound="RunFacts")

VERSION = 1
#: The names of an ingest's files in `runs/`.
INGEST_PREFIX, SAMPLES_SUFFIX = "ingest-", ".jsonl.gz"
LARGEST_BYTES = 64 << 20
#: Endings of files that affect measurements.
_DECIDING = (".py", ".yaml", ".json")
#: Packages whose version may affect a duration or its measurement.
_PACKAGES = ("opatlas", "torch", "torch_npu", "vllm-ascend", "numpy", "pandas", "pytest", "hypothesis")


#: Seconds since the epoch, before the year 10000.
Time = Annotated[float, msgspec.Meta(ge=0, lt=253402300800)]


@dataclass
class RunFacts:
    """What the manifests of sessions and of ingests tell of a run.

    Attributes:
        run_id: as in the column Run ID or Profiling Run ID.
        started_at, finished_at: seconds since the epoch; None while the run lasts, or if it was killed.
        options: the options of the command line, with defaults.
        code: the digest of the code (`code_digest`).
        host, system, python, packages: machine and software.
    """

    run_id: str
    started_at: Time
    options: Mapping[str, Any] = field(default_factory=dict)
    code: str = ""
    finished_at: Time | None = field(default=None, kw_only=True)
    host: str = field(default="", kw_only=True)
    system: str = field(default="", kw_only=True)
    python: str = field(default="", kw_only=True)
    packages: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    version: int = field(default=VERSION, kw_only=True)

    @classmethod
    def read(cls: type[_Facts], path: Path) -> _Facts:
        """Reads a manifest, or the one that a file of samples begins with; the file's name has the run id.

        Missing fields are empty; unknown fields are ignored.

        Raises:
            OpAtlasError: the file cannot be read, or is not a manifest.
        """
        try:
            if not path.name.endswith(SAMPLES_SUFFIX):
                return cls.decode(read_safely(path, LARGEST_BYTES), path)
            with open_safely(path) as packed, gzip.open(packed) as file:
                return cls.decode(file.readline(LARGEST_BYTES), path)
        except (*BROKEN_GZIP, OSError) as error:
            why = getattr(error, "strerror", None) or error
            raise OpAtlasError(f"{path}: cannot be read ({why}): check its permissions, or restore it") from None

    @classmethod
    def decode(cls: type[_Facts], text: bytes, path: Path) -> _Facts:
        """Decodes the manifest in the file at a path. Raises OpAtlasError."""
        run_id = path.name.removesuffix(".json").removesuffix(SAMPLES_SUFFIX)
        try:
            return msgspec.convert({**decode(text, dict[str, Any], str(path)), "run_id": run_id}, cls)
        except (DecodeError, msgspec.ValidationError) as error:
            problem = error.problem if isinstance(error, DecodeError) else str(error)
            raise OpAtlasError(f"{path}: not the manifest of a run ({problem}): restore it, or move it away") from None

    @staticmethod
    def path(database: Database, run_id: str) -> Path:
        """Returns the path of a run's manifest."""
        return database.runs_dir / f"{run_id}.json"

    def write(self, database: Database) -> Path:
        """Writes the manifest, and replaces an existing one. Raises OpAtlasError."""
        path = self.path(database, self.run_id)
        text = json.dumps(asdict(self), indent=2, default=str, ensure_ascii=False)
        # `decode` reads no lone surrogate, as an option with a path may have.
        write_text(path, text.encode(errors="replace").decode() + "\n")
        return path


@dataclass
class Manifest(RunFacts):
    """The manifest of a session.

    Attributes:
        device: name and facts of the device; empty until a row has run.
        other_devices: the same for further devices of the session, and for each group: the device of its first rank,
            with the number of its ranks among the facts.
        statuses: the number of rows by status.
        machine_at_start, machine_at_end: load, steal, other processes, CPU quota, frequency governors, clocks of GPUs,
            and disturbances; empty if unknown.
    """

    device: Mapping[str, Any] = field(default_factory=dict)
    other_devices: Sequence[Mapping[str, Any]] = ()
    statuses: Mapping[str, int] = field(default_factory=dict)
    machine_at_start: Mapping[str, Any] = field(default_factory=dict)
    machine_at_end: Mapping[str, Any] = field(default_factory=dict)

    @property
    def device_names(self) -> frozenset[str]:
        """The names of the run's devices; empty if the run ended before its first row."""
        named = (device.get("name") for device in (self.device, *self.other_devices))
        return frozenset(str(name) for name in named if name)

    @property
    def torch(self) -> str:
        """The public version of torch ("2.9.0" of "2.9.0+cpu"); "" if torch was not installed."""
        return public_version(self.packages.get("torch", ""))


def read_manifests(database: Database, problems: list[str]) -> dict[str, Manifest]:
    """Reads the manifests of sessions.

    Args:
        problems: receives a sentence for each manifest that cannot be read.

    Returns:
        The readable manifests by run id, in the order of the run ids.
    """
    found = {}
    for path in sorted(path for path in database.runs_dir.glob("*.json") if not path.name.startswith(INGEST_PREFIX)):
        with noted(problems):
            found[path.stem] = Manifest.read(path)
    return found


def code_digest(directories: Iterable[Path]) -> str:
    """Returns a digest of names and contents of all files in some folders that affect measurements.

    These are code, and tables that the code reads (the catalog of theory rows, the calls of kernels).
    """
    digest = hashlib.sha256()
    for directory in directories:
        for path in sorted(_deciding(directory)):
            digest.update(path.relative_to(directory.parent).as_posix().encode() + b"\0")
            digest.update(path.read_bytes() + b"\0")
    return digest.hexdigest()


def _deciding(directory: Path) -> Iterator[Path]:
    for name, folders, files in os.walk(directory):
        folders[:] = [folder for folder in folders if folder != "__pycache__"]
        yield from (Path(name, file) for file in files if file.endswith(_DECIDING))


def this_machine(packages: Iterable[str] = _PACKAGES) -> dict[str, Any]:
    """Returns the fields of a manifest about this machine and its software."""
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "packages": {name: version for name in packages if (version := package_version(name)) is not None},
    }


@dataclass(frozen=True)
class CaptureFile:
    """A capture that was ingested.

    Attributes:
        path: the path as given or found; unprintable characters are escaped.
        name: the last part of `path`.
        sha256: digest of the bytes, in hexadecimal digits.
        rows: all rows; `ingested` of them are in the database, the others `left_out`, by reason.
        same_bytes: paths of further files with the same bytes, whose rows were not counted again.
    """

    path: str
    name: str
    size_bytes: int
    sha256: str
    rows: int
    ingested: int
    left_out: Mapping[str, int]
    same_bytes: tuple[str, ...] = ()


@dataclass(frozen=True)
class SignatureCounts:
    """The numbers of signatures with new, updated and unchanged rows."""

    new: int = 0
    updated: int = 0
    unchanged: int = 0


@dataclass(kw_only=True)
class IngestManifest(RunFacts):
    """The manifest of an ingest. Ingests count in the order of their starts; one is finished when every CSV has it.

    Attributes:
        kind: distinguishes the manifest of an ingest from the manifest of a session.
        replace: whether the samples hide the samples of earlier ingests (`--replace`).
        device, versions: device and software of the capture; None if unknown.
        files: the captures.
        kernel_types, signatures: numbers of kernel types and signatures.
        added_to: earlier ingests whose samples count in the same rows.
    """

    kind: Literal["ingest"] = "ingest"
    replace: bool
    device: str | None
    versions: Versions
    files: tuple[CaptureFile, ...]
    kernel_types: int = 0
    signatures: SignatureCounts = field(default_factory=SignatureCounts)
    added_to: tuple[str, ...] = ()


def samples_path(database: Database, run_id: str) -> Path:
    """Returns the path of an ingest's samples."""
    return database.runs_dir / f"{run_id}{SAMPLES_SUFFIX}"


def check_same_software(earlier: Sequence[IngestManifest], device: str | None, versions: Versions) -> None:
    """Checks that device and versions of captures equal those of earlier captures, where both are known.

    Raises:
        OpAtlasError: they differ.
    """
    for name, fact in _known_facts(device, versions).items():
        before = {
            facts[name]: manifest.run_id
            for manifest in earlier
            if name in (facts := _known_facts(manifest.device, manifest.versions))
        }
        if before and fact not in before:
            captured = ", ".join(f"{other} ({run_id})" for other, run_id in before.items())
            raise OpAtlasError(f"captures of {name} {fact}, not {captured}: give another --database-path, or --mixed")


def unknown_facts(earlier: IngestManifest, device: str | None, versions: Versions) -> str:
    """Returns the given device and versions that an earlier ingest does not name: "device Ascend910B3"; or ""."""
    known = _known_facts(earlier.device, earlier.versions)
    given = _known_facts(device, versions)
    return ", ".join(f"{name} {fact}" for name, fact in given.items() if name not in known)


def _known_facts(device: str | None, versions: Versions) -> dict[str, str]:
    software = {"vllm-ascend": versions.vllm, "torch": versions.torch, "CANN": versions.cann, "CUDA": versions.cuda}
    facts = {"device": device, **software}
    return {name: public_version(fact) for name, fact in facts.items() if fact}


@dataclass(frozen=True)
class Ingest:
    """An ingest of a database; `samples` is None if the file of its samples is missing."""

    manifest: IngestManifest
    samples: Path | None


def read_ingests(database: Database, problems: list[str] | None = None) -> list[Ingest]:
    """Returns all ingests of a database, in the order in which they began.

    Args:
        problems: receives a sentence for each ingest that cannot be read; None raises the first.

    Raises:
        OpAtlasError: a manifest, or a file of samples without a manifest, is damaged.
    """
    found = []
    samples = sorted(database.runs_dir.glob(f"{INGEST_PREFIX}*{SAMPLES_SUFFIX}"))
    # An ingest that was killed before it wrote its manifest has samples alone.
    alone = [path for path in samples if not RunFacts.path(database, path.name.removesuffix(SAMPLES_SUFFIX)).exists()]
    for path in (*alone, *sorted(database.runs_dir.glob(f"{INGEST_PREFIX}*.json"))):
        try:
            manifest = IngestManifest.read(path)
        except OpAtlasError as error:
            if problems is None:
                raise
            problems.append(str(error))
            continue
        beside = samples_path(database, manifest.run_id)
        found.append(Ingest(manifest, beside if beside in samples else None))
    return sorted(found, key=lambda ingest: (ingest.manifest.started_at, ingest.manifest.run_id))


#: The sort key of a run, newer is greater. It ends with the run id, so that two runs never compare equal.
Age = tuple[int, float, str]
_NO_RUN, _UNKNOWN_TIME, KNOWN_TIME = range(3)
_TIME = re.compile(r"([0-9]{8}T[0-9]{6})(?=-|$)")


class RunOrder:
    """Orders runs by their start.

    The start is in the manifest of the run, or else in its id, in UTC.
    """

    def __init__(self, started_at: Mapping[str, float] | None = None) -> None:
        """`started_at` is the start by run id, from manifests, in seconds since the epoch."""
        self._started_at = started_at or {}
        self._ages: dict[str, Age] = {}

    def age(self, run_id: str) -> Age:
        """Returns the sort key of a run; "" for no run, which is older than any run."""
        if run_id not in self._ages:
            self._ages[run_id] = self._age(run_id)
        return self._ages[run_id]

    def _age(self, run_id: str) -> Age:
        if not run_id:
            return _NO_RUN, 0.0, ""
        started_at = self._started_at.get(run_id, run_id_time(run_id))
        return (_UNKNOWN_TIME, 0.0, run_id) if started_at is None else (KNOWN_TIME, started_at, run_id)


def run_id_time(run_id: str) -> float | None:
    """Returns the start in a run id (`20261121T163006-1f0c9a`), in seconds since the epoch; None for other ids."""
    found = _TIME.match(run_id)
    try:
        return float(calendar.timegm(time.strptime(found[1], "%Y%m%dT%H%M%S"))) if found else None
    except (OverflowError, ValueError):
        return None


#: A run of a smaller share of the rows of the largest run does not show the pace.
_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Pace:
    """The time of a row in a replay, with its start and its check.

    Attributes:
        seconds_a_row: seconds for each row.
        run_id: the run in which the pace was measured; "" for an assumed pace.
    """

    seconds_a_row: float = Kind.assumed_s_a_row
    run_id: str = ""

    def time_of(self, rows: int) -> str:
        """Returns the time of some rows and the source of the pace: `16 min 40 s, at 2 rows/s (as in run X)`."""
        where = f"as in run {self.run_id}" if self.run_id else "assumed: this database has no replay yet"
        seconds = self.seconds_a_row
        pace = f"{seconds:.3g} s a row" if seconds >= 1 else f"{1 / seconds:.3g} rows/s"
        return f"{formats.seconds(rows * seconds)}, at {pace} ({where})"


def replay_pace(manifests: Iterable[Manifest], kind: str = "") -> Pace:
    """Returns the pace of the newest run that replayed rows to its end.

    Runs of far fewer rows than the largest run do not count: most of their time is start and end.

    Args:
        kind: the kind of device, for a pace where no run has one.
    """
    found = []
    for manifest in sorted(manifests, key=lambda each: (each.started_at, each.run_id), reverse=True):
        rows = sum(count for status, count in manifest.statuses.items() if status not in ("added", "not run"))
        if rows and manifest.finished_at is not None and manifest.finished_at > manifest.started_at:
            found.append((rows, Pace((manifest.finished_at - manifest.started_at) / rows, manifest.run_id)))
    assumed = Pace(kinds()[kind].assumed_s_a_row) if kind in kinds() else Pace()
    least = _LEAST_SHARE * max((rows for rows, _ in found), default=0)
    return next((pace for rows, pace in found if rows >= least), assumed)
