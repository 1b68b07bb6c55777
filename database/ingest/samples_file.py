"""The samples of an ingest: `runs/ingest-{time}-{hex}.jsonl.gz`, gzipped JSON Lines.

The first line is the manifest as it was before the CSVs were written. Each further line holds the launches of a
signature, all durations in the order launched, with what the means of the counters are made of; or the Profiling
cells of a row that the ingest replaced and that no ingest's samples explain.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from database.errors import OpAtlasError
from database.ingest.manifest import IngestManifest, decode_manifest
from database.safe_paths import open_own
from database.signature import signature
from database.store import write_atomically
from database.typed_json import DecodeError, decode

#: Durations hardly compress: more effort takes three times as long for a tenth of the size.
_COMPRESSION = 3
_RESTORE = (
    "restore it; or move it away, and put captures in the place of what it held with "
    "`python -m database ingest --replace`"
)
#: A hundred million launches of one signature.
_LINE_BYTES = 1 << 30
_Microseconds = Annotated[float, Meta(gt=0, lt=1e18)]
_Count = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True)
class Kept:
    """A line of the file.

    Attributes:
        cells: the base columns of the first launch, and the Runtime columns that its shapes tell; empty ones left out.
        durations_us: of all launches, in the order read; none if the line holds replaced cells.
        counters: sum over the launches that have the counter, and how many have it, by name.
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


def write_samples(path: Path, manifest: IngestManifest, lines: Iterable[Kept]) -> None:
    """Writes the file in one step. Raises OpAtlasError."""

    def write(temporary: str) -> None:
        encoder = msgspec.json.Encoder()
        with open(temporary, "wb") as file, gzip.GzipFile("", "wb", _COMPRESSION, file, mtime=0) as packed:
            packed.write(manifest.to_json() + b"\n")
            for line in lines:
                packed.write(encoder.encode(line) + b"\n")

    write_atomically(path, write)


def read_begun(path: Path) -> IngestManifest:
    """The manifest that the file begins with. Raises OpAtlasError."""
    return decode_manifest(next(_lines(path), b""), path)


def read_samples(path: Path) -> Iterator[Kept]:
    """The lines after the first. Raises OpAtlasError: the file cannot be read, or is damaged."""
    for number, text in enumerate(_lines(path), 1):
        if number == 1:
            continue
        try:
            line = decode(text, Kept, f"{path}:{number}")
        except DecodeError as error:
            raise OpAtlasError(f"{error}: {_RESTORE}") from None
        if not line.durations_us and not line.replaced:
            raise OpAtlasError(f"{path}:{number}: neither durations nor replaced cells: {_RESTORE}")
        yield line


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with open_own(path) as packed, gzip.GzipFile(fileobj=packed) as file:
            while line := file.readline(_LINE_BYTES):
                if not line.endswith(b"\n"):
                    raise OpAtlasError(
                        f"{path}: a line that is cut off, or longer than {_LINE_BYTES:,} bytes: {_RESTORE}"
                    )
                yield line
    except (OSError, EOFError, zlib.error) as error:
        raise OpAtlasError(f"{path}: cannot be read ({error}): {_RESTORE}") from None
