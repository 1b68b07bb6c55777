"""The manifest and the samples of an ingest: `runs/ingest-{time}-{hex}.json` and `.jsonl.gz`.

A Profiling Run ID in a CSV names the manifest. The file of samples begins with the manifest and is written first, so
that an ingest that is killed between both files is still known.
"""

from __future__ import annotations

import gzip
import platform
import secrets
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from opatlas.data.csv_files import write_atomically, write_text
from opatlas.data.database import Database
from opatlas.data.manifest import INGEST_PREFIX, code_digest, decode_as, installed_versions, read_bytes
from opatlas.errors import OpAtlasError
from opatlas.files import open_safely
from opatlas.row.columns import is_file_name
from opatlas.row.location import public_version
from opatlas.row.quality import LONGEST_US
from opatlas.row.signature import signature
from opatlas.typed_json import DecodeError, decode

VERSION = 1
SAMPLES_SUFFIX = ".jsonl.gz"
_PACKAGES = ("opatlas", "numpy", "pandas", "pyarrow")
#: Least time between the starts of two ingests, so that their order is right even if the clock was set back.
_STEP_S = 0.001
_Time = Annotated[float, Meta(ge=0, lt=253402300800)]


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
class CaptureVersions:
    """The software of a capture, as given or as the folder of the database states; None if unknown."""

    vllm: str | None = None
    torch: str | None = None
    cann: str | None = None


@dataclass(frozen=True)
class SignatureCounts:
    """The numbers of signatures with new, updated and unchanged rows."""

    new: int = 0
    updated: int = 0
    unchanged: int = 0


@dataclass(kw_only=True)
class IngestManifest:
    """The manifest of an ingest.

    Attributes:
        kind: distinguishes the manifest of an ingest from the manifest of a run.
        run_id: the id in the Profiling Run ID column.
        started_at: seconds since the epoch. Ingests count in this order.
        finished_at: seconds since the epoch; None until every CSV has the statistics.
        replace: whether the samples hide the samples of earlier ingests (`--replace`).
        device, versions: device and software of the capture; None if unknown.
        files: the captures.
        options: the options of the command line.
        code: digest of the code that ingested (`code_digest`).
        host, system, python, packages: where the ingest ran.
        kernel_types, signatures: numbers of kernel types and signatures.
        added_to: earlier ingests whose samples count in the same rows.
    """

    kind: Literal["ingest"] = "ingest"
    run_id: str
    started_at: _Time
    finished_at: _Time | None = None
    replace: bool
    device: str | None
    versions: CaptureVersions
    files: tuple[CaptureFile, ...]
    options: Mapping[str, Any]
    code: str
    host: str
    system: str
    python: str
    packages: Mapping[str, str]
    kernel_types: int = 0
    signatures: SignatureCounts = field(default_factory=SignatureCounts)
    added_to: tuple[str, ...] = ()
    version: int = VERSION

    def to_json(self) -> bytes:
        """Returns the manifest as one line of JSON."""
        return msgspec.json.encode(self)

    def write(self, database: Database) -> Path:
        """Writes the manifest, replacing an earlier version. Raises OpAtlasError."""
        path = manifest_path(database, self.run_id)
        write_text(path, msgspec.json.format(self.to_json(), indent=2).decode() + "\n")
        return path


def manifest_path(database: Database, run_id: str) -> Path:
    """Returns the path of an ingest's manifest."""
    return database.runs_dir / f"{run_id}.json"


def samples_path(database: Database, run_id: str) -> Path:
    """Returns the path of an ingest's samples."""
    return database.runs_dir / f"{run_id}{SAMPLES_SUFFIX}"


def new_manifest(
    earlier: Sequence[IngestManifest],
    *,
    replace: bool,
    device: str | None,
    versions: CaptureVersions,
    files: Sequence[CaptureFile],
    options: Mapping[str, Any],
) -> IngestManifest:
    """Returns the manifest of an ingest that begins now, after all earlier ingests of the database."""
    started_at = max([time.time(), *(manifest.started_at + _STEP_S for manifest in earlier)])
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(started_at))
    return IngestManifest(
        run_id=f"{INGEST_PREFIX}{stamp}-{secrets.token_hex(3)}",
        started_at=started_at,
        replace=replace,
        device=device,
        versions=versions,
        files=tuple(files),
        options=options,
        code=code_digest([Path(__file__).parents[1]]),
        host=platform.node(),
        system=platform.platform(),
        python=platform.python_version(),
        packages=installed_versions(_PACKAGES),
    )


def check_same_software(earlier: Sequence[IngestManifest], device: str | None, versions: CaptureVersions) -> None:
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
            raise OpAtlasError(
                f"these captures are of {name} {fact}, earlier ones of {name} {captured}: "
                f"name another --database-path for these, or add --mixed"
            )


def unknown_facts(earlier: IngestManifest, device: str | None, versions: CaptureVersions) -> str:
    """Returns the given device and versions that an earlier ingest does not name: "device Ascend910B3"; or ""."""
    known = _known_facts(earlier.device, earlier.versions)
    given = _known_facts(device, versions)
    return ", ".join(f"{name} {fact}" for name, fact in given.items() if name not in known)


def _known_facts(device: str | None, versions: CaptureVersions) -> dict[str, str]:
    facts = {"device": device, "vllm-ascend": versions.vllm, "torch": versions.torch, "CANN": versions.cann}
    return {name: public_version(fact) for name, fact in facts.items() if fact}


def read_manifest(path: Path) -> IngestManifest:
    """Reads a manifest. Raises OpAtlasError where the file cannot be read, or is not the manifest of an ingest."""
    return decode_manifest(read_bytes(path), path)


def decode_manifest(text: bytes, path: Path) -> IngestManifest:
    """Decodes a manifest. The run id is taken from the file's name. Raises OpAtlasError."""
    manifest = decode_as(IngestManifest, text, path, "an ingest")
    manifest.run_id = path.name.partition(".")[0]
    return manifest


#: Durations compress badly: a higher level takes three times as long and saves a tenth of the size.
_COMPRESSION = 3
_RESTORE = "restore the file; or move it away, and ingest captures for its rows with `opatlas ingest --replace`"
#: Enough for a hundred million launches of one signature.
_LINE_BYTES = 1 << 30
_Microseconds = Annotated[float, Meta(gt=0, le=LONGEST_US)]
_Count = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True)
class SampleLine:
    """A line of the file of samples.

    Attributes:
        cells: base columns of the first launch and the Runtime columns that its shapes tell, without empty ones.
        durations_us: durations of all launches, in the order read; empty if the line holds replaced cells.
        counters: for each counter the sum over the launches that have the counter, and their number.
        sources: the captures of an attention row, as Runtime source_profile names them.
        replaced: Profiling cells that no ingest's samples explain, by column.
    """

    kernel_type: str
    cells: Mapping[str, str]
    durations_us: list[_Microseconds] = field(default_factory=list)
    counters: Mapping[str, tuple[float, _Count]] = field(default_factory=dict)
    sources: list[str] = field(default_factory=list)
    replaced: Mapping[str, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """Kernel type and signature."""
        return self.kernel_type, signature(self.kernel_type, self.cells)


def write_samples(path: Path, manifest: IngestManifest, lines: Iterable[SampleLine]) -> None:
    """Writes the file of samples in one step. Raises OpAtlasError."""

    def write(temporary: str) -> None:
        encoder = msgspec.json.Encoder()
        with open(temporary, "wb") as file, gzip.GzipFile("", "wb", _COMPRESSION, file, mtime=0) as packed:
            packed.write(manifest.to_json() + b"\n")
            for line in lines:
                packed.write(encoder.encode(line) + b"\n")

    write_atomically(path, write)


def read_samples_manifest(path: Path) -> IngestManifest:
    """Reads the manifest at the beginning of a file of samples. Raises OpAtlasError."""
    return decode_manifest(next(_lines(path), b""), path)


def read_samples(path: Path) -> Iterator[SampleLine]:
    """Yields the lines of samples. Raises OpAtlasError where the file cannot be read, or is damaged."""
    for number, text in enumerate(_lines(path), 1):
        if number == 1:
            continue
        try:
            line = decode(text, SampleLine, f"{path}:{number}")
        except DecodeError as error:
            raise OpAtlasError(f"{error}: {_RESTORE}") from None
        if not is_file_name(line.kernel_type):
            raise OpAtlasError(f"{path}:{number}: kernel type {line.kernel_type!r} cannot name a CSV: {_RESTORE}")
        if not line.durations_us and not line.replaced:
            raise OpAtlasError(f"{path}:{number}: neither durations nor replaced cells: {_RESTORE}")
        yield line


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with open_safely(path) as packed, gzip.GzipFile(fileobj=packed) as file:
            while line := file.readline(_LINE_BYTES):
                if not line.endswith(b"\n"):
                    raise OpAtlasError(
                        f"{path}: a line that is cut off, or longer than {_LINE_BYTES:,} bytes: {_RESTORE}"
                    )
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise OpAtlasError(f"{path}: cannot be read ({error}): {_RESTORE}") from None
