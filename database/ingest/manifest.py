"""The manifest of an ingest: what a Profiling Run ID in a CSV leads to. `runs/ingest-{time}-{hex}.json`.

The samples of the ingest lie beside the manifest (database/ingest/samples_file.py). Their file begins with the
manifest and is written first, so that an ingest that was killed between the two files is known all the same.
"""

from __future__ import annotations

import platform
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from database.errors import OpAtlasError
from database.layout import public_version
from database.manifest import INGEST_PREFIX, LARGEST_BYTES, code_digest, installed
from database.safe_paths import read_own
from database.store import Database, write_text
from database.typed_json import DecodeError, decode

VERSION = 1
SAMPLES_SUFFIX = ".jsonl.gz"
_PACKAGES = ("opatlas", "numpy", "pandas", "pyarrow")
#: Of two ingests the later one began later, even if the clock was set back between them.
_STEP_S = 0.001
_Time = Annotated[float, Meta(ge=0, lt=253402300800)]


@dataclass(frozen=True)
class CaptureFile:
    """A capture that was ingested.

    Attributes:
        path: as it was given or found; `name` is its last part. What cannot be printed is escaped.
        sha256: of its bytes, in hexadecimal digits.
        rows: of which `ingested` are in the database, and the others `left_out`, by reason.
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
    """The software that a capture was taken with, as given or as the database's folder was named; None: not known."""

    vllm: str | None = None
    torch: str | None = None
    cann: str | None = None


@dataclass(frozen=True)
class Signatures:
    """The signatures of an ingest by what became of their rows."""

    new: int = 0
    updated: int = 0
    unchanged: int = 0


@dataclass(kw_only=True)
class IngestManifest:
    """What an ingest was.

    Attributes:
        kind: tells the manifest of an ingest from that of a run.
        run_id: as in the Profiling Run ID column.
        started_at: seconds since the epoch; ingests count in the order of it.
        finished_at: the same; None until every CSV has the statistics.
        replace: whether the samples replace those of earlier ingests (`--replace`), or join them.
        device, versions: of the capture; None if not known.
        files: the captures.
        options: as given on the command line.
        code: digest of the code that ingested (`code_digest`).
        host, system, python, packages: where it was ingested.
        kernel_types, signatures: how many.
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
    signatures: Signatures = field(default_factory=Signatures)
    added_to: tuple[str, ...] = ()
    version: int = VERSION

    def to_json(self) -> bytes:
        """The manifest as one line of JSON."""
        return msgspec.json.encode(self)

    def write(self, database: Database) -> Path:
        """Writes the manifest, replacing what stood there. Raises OpAtlasError."""
        path = manifest_path(database, self.run_id)
        write_text(path, msgspec.json.format(self.to_json(), indent=2).decode() + "\n")
        return path


def manifest_path(database: Database, run_id: str) -> Path:
    """Where the manifest of an ingest is."""
    return database.runs_dir / f"{run_id}.json"


def samples_path(database: Database, run_id: str) -> Path:
    """Where the samples of an ingest are."""
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
    """The manifest of an ingest that begins now, after all earlier ones of the database."""
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
        packages=installed(_PACKAGES),
    )


def expect_alike(earlier: Sequence[IngestManifest], device: str | None, versions: CaptureVersions) -> None:
    """Sees to it that captures are of the device and the versions that earlier ones are of, as far as these are known.

    Raises:
        OpAtlasError: they are not.
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
                f"these captures are of {name} {fact}, and earlier ones of {name} {captured}: "
                f"name another --database-path for these, or add --mixed"
            )


def _known_facts(device: str | None, versions: CaptureVersions) -> dict[str, str]:
    facts = {"device": device, "vllm-ascend": versions.vllm, "torch": versions.torch, "CANN": versions.cann}
    return {name: public_version(fact) for name, fact in facts.items() if fact}


def read_manifest(path: Path) -> IngestManifest:
    """Reads a manifest. Raises OpAtlasError: the file cannot be read, or is no manifest of an ingest."""
    try:
        text = read_own(path, LARGEST_BYTES)
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): check its permissions") from None
    return decode_manifest(text, path)


def decode_manifest(text: bytes, path: Path) -> IngestManifest:
    """The manifest in a text. Its run id is that of the file's name. Raises OpAtlasError."""
    try:
        manifest = decode(text, IngestManifest, str(path))
    except DecodeError as error:
        raise OpAtlasError(
            f"{path}: not the manifest of an ingest ({error.problem}): restore it, or move it away"
        ) from None
    manifest.run_id = path.name.partition(".")[0]
    return manifest
