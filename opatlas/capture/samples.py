"""The samples of an ingest: `runs/ingest-{time}-{hex}.jsonl.gz` (opatlas/data/ingests.py has the manifest)."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from opatlas.data.csv_files import write_atomically
from opatlas.data.ingests import RESTORE, IngestManifest, packed_lines
from opatlas.errors import OpAtlasError
from opatlas.row.columns import is_file_name
from opatlas.row.quality import LONGEST_US
from opatlas.row.signature import signature
from opatlas.typed_json import DecodeError, decode

#: Durations compress badly: a higher level takes three times as long and saves a tenth of the size.
_COMPRESSION = 3
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


def read_samples(path: Path) -> Iterator[SampleLine]:
    """Yields the lines of samples. Raises OpAtlasError where the file cannot be read, or is damaged."""
    for number, text in enumerate(packed_lines(path), 1):
        if number == 1:
            continue
        try:
            line = decode(text, SampleLine, f"{path}:{number}")
        except DecodeError as error:
            raise OpAtlasError(f"{error}: {RESTORE}") from None
        if not is_file_name(line.kernel_type):
            raise OpAtlasError(f"{path}:{number}: kernel type {line.kernel_type!r} cannot name a CSV: {RESTORE}")
        if not line.durations_us and not line.replaced:
            raise OpAtlasError(f"{path}:{number}: neither durations nor replaced cells: {RESTORE}")
        yield line
