"""The ingests of a database: the manifest `runs/ingest-{time}-{hex}.json`, and the samples beside it (`.jsonl.gz`).

A Profiling Run ID in a CSV names the manifest. The file of samples (opatlas/capture/cases.py) begins with the
manifest and is written first, so that an ingest that is killed between both files is still known.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from opatlas.data.database import Database
from opatlas.data.log import read_lines
from opatlas.data.manifest import INGEST_PREFIX, RunFacts, code_digest, this_machine
from opatlas.errors import OpAtlasError
from opatlas.row.location import public_version

SAMPLES_SUFFIX = ".jsonl.gz"
_PACKAGES = ("opatlas", "numpy", "pandas", "pyarrow")
#: Least time between the starts of two ingests, so that their order is right even if the clock was set back.
_STEP_S = 0.001


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
    cuda: str | None = None


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
    versions: CaptureVersions
    files: tuple[CaptureFile, ...]
    kernel_types: int = 0
    signatures: SignatureCounts = field(default_factory=SignatureCounts)
    added_to: tuple[str, ...] = ()


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
        **this_machine(_PACKAGES),
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
            manifest = read_manifest(path)
        except OpAtlasError as error:
            if problems is None:
                raise
            problems.append(str(error))
            continue
        beside = samples_path(database, manifest.run_id)
        found.append(Ingest(manifest, beside if beside in samples else None))
    return sorted(found, key=lambda ingest: (ingest.manifest.started_at, ingest.manifest.run_id))


def read_manifest(path: Path) -> IngestManifest:
    """Reads the manifest of an ingest, from its own file or from that of the samples; the file's name has the run id.

    Raises:
        OpAtlasError: the file cannot be read, or does not begin with the manifest of an ingest.
    """
    if path.name.endswith(SAMPLES_SUFFIX):
        return IngestManifest.decode(next(read_lines(path), b""), path)
    return IngestManifest.read(path)
