"""Cases: launches grouped by signature, over the files of a capture, and over the samples of several ingests.

A case is a signature (opatlas.row.signature): rows with the same kernel type, shapes, dtypes and formats after
normalization. For some kernel types (Slice, Index, Transpose) a signature covers rows with different cells. They still
are one case with one row of the CSV, because a lookup could not tell two rows of one signature apart. A case has the
cells of its first launch.

Ingests count in the order in which they began. An ingest with `--replace` hides earlier ingests for its signatures.
The statistics of several ingests equal the statistics of one capture with all launches.

The samples of an ingest are `runs/ingest-{time}-{hex}.jsonl.gz` (opatlas/data/manifest.py has the manifest).
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np

from opatlas.capture.capture_discovery import kind_of_capture
from opatlas.capture.launches import CaptureReader, CasePart, LaunchCounts, add_counts
from opatlas.capture.torch_launches import read_torch_trace
from opatlas.data.csv_files import write_atomically
from opatlas.data.log import read_lines
from opatlas.data.manifest import Ingest, IngestManifest
from opatlas.errors import TableError, noted
from opatlas.files import size_mb
from opatlas.progress import progress
from opatlas.row.columns import PROFILING_KERNEL_NAMES, PROFILING_SOURCE, is_file_name
from opatlas.row.quality import LONGEST_US, Summary, summarize
from opatlas.row.signature import signature
from opatlas.typed_json import DecodeError, decode

#: Durations compress badly: a higher level takes three times as long and saves a tenth of the size.
_COMPRESSION = 3
_Microseconds = Annotated[float, msgspec.Meta(gt=0, le=LONGEST_US)]
_Count = Annotated[int, msgspec.Meta(ge=0)]
_RESTORE = "Restore the file; or move it away, and ingest captures for its rows with `opatlas ingest --replace`"
#: Kernel type and signature.
CaseKey = tuple[str, str]


@dataclass(frozen=True)
class SampleLine:
    """A line of the file of samples.

    Attributes:
        cells: base columns of the first launch, the Runtime columns that its shapes tell, and what a trace says of its
            kernels, without empty ones.
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
    def key(self) -> CaseKey:
        return self.kernel_type, signature(self.kernel_type, self.cells)


def write_samples(path: Path, manifest: IngestManifest, lines: Iterable[SampleLine]) -> None:
    """Writes the file of samples in one step. Raises OpAtlasError."""

    def write(temporary: str) -> None:
        encoder = msgspec.json.Encoder()
        with open(temporary, "wb") as file, gzip.GzipFile("", "wb", _COMPRESSION, file, mtime=0) as packed:
            packed.write(msgspec.json.encode(manifest) + b"\n")
            for line in lines:
                packed.write(encoder.encode(line) + b"\n")

    write_atomically(path, write)


def read_samples(path: Path) -> Iterator[SampleLine]:
    """Yields the lines of samples. Raises OpAtlasError where the file cannot be read, or is damaged."""
    for number, text in enumerate(read_lines(path), 1):
        if number == 1:
            continue
        try:
            line = decode(text, SampleLine, "")
        except DecodeError as error:
            raise TableError(path, error.problem, _RESTORE, line=number) from None
        if not is_file_name(line.kernel_type):
            problem = "cannot name a CSV"
            raise TableError(path, problem, _RESTORE, line=number, column="kernel_type", value=line.kernel_type)
        if not line.durations_us and not line.replaced:
            raise TableError(path, "neither durations nor replaced cells", _RESTORE, line=number)
        yield line


@dataclass(frozen=True)
class Case:
    """The launches of one signature.

    Attributes:
        cells: the base columns of the first launch, without quotes, and the Runtime columns that its shapes tell.
        durations_us: durations of all launches, in the order read.
        counter_sums: for each counter the sum over the launches that have the counter, and their number.
        sources: the captures, as Runtime source_profile names them.
        run_ids: the ingests, in the order in which they count; empty for the cases of a capture.
        replaced: whether an ingest has replaced durations that no samples explain.
    """

    kernel_type: str
    signature: str
    cells: Mapping[str, str]
    durations_us: tuple[float, ...]
    counter_sums: Mapping[str, tuple[float, int]]
    sources: tuple[str, ...]
    run_ids: tuple[str, ...] = ()
    replaced: bool = False

    @property
    def durations(self) -> Summary:
        """Statistics of all launches."""
        return summarize(self.durations_us)

    @property
    def counters(self) -> dict[str, float | None]:
        """Mean of each counter over the launches that have the counter; None if no launch has it."""
        return {name: total / count if count else None for name, (total, count) in self.counter_sums.items()}


class Cases:
    """The cases of a kernel type. Each case is computed on access, so that a million cases need not fit in memory."""

    def __init__(
        self, kernel_type: str, parts: Mapping[str, Sequence[CasePart]], replaced: Collection[CaseKey] = ()
    ) -> None:
        self._kernel_type = kernel_type
        self._parts = parts
        self._replaced = replaced

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[Case]:
        return map(self.__getitem__, self._parts)

    def __contains__(self, text: object) -> bool:
        return text in self._parts

    def __getitem__(self, text: str) -> Case:
        """Returns the case of a signature. Raises KeyError."""
        parts = self._parts[text]
        cells = dict(parts[0].cells)
        for column in (PROFILING_KERNEL_NAMES, PROFILING_SOURCE):
            if told := dict.fromkeys(part.cells[column] for part in parts if column in part.cells):
                cells[column] = " | ".join(told)
        sums: dict[str, tuple[float, int]] = {}
        for part in parts:
            names, totals, counts = part.counters
            for name, total, count in zip(names, totals.tolist(), counts.tolist(), strict=True):
                before, counted_before = sums.get(name, (0.0, 0))
                sums[name] = before + total, counted_before + count
        return Case(
            kernel_type=self._kernel_type,
            signature=text,
            cells=cells,
            durations_us=tuple(np.concatenate([part.durations_us for part in parts]).tolist()),
            counter_sums=sums,
            sources=tuple(dict.fromkeys(name for part in parts for name in part.sources)),
            run_ids=tuple(part.run_id for part in parts if part.run_id),
            replaced=(self._kernel_type, text) in self._replaced,
        )

    @property
    def signatures(self) -> Collection[str]:
        """The signatures of the cases."""
        return self._parts.keys()

    @property
    def run_ids(self) -> set[str]:
        """The ingests with samples of any of the cases."""
        return {part.run_id for parts in self._parts.values() for part in parts}

    @property
    def cells(self) -> Iterator[tuple[str, Mapping[str, str], int]]:
        """Signature, cells and number of launches of each case, without its durations."""
        for text, parts in self._parts.items():
            yield text, parts[0].cells, sum(len(part.durations_us) for part in parts)


class Aggregate:
    """The cases of several captures.

    Attributes:
        account: counts of all rows.
        files: the captures that were read, each with the counts of its rows.
        problems: rows that were left out because they are invalid.
    """

    def __init__(self, root: Path | None = None, shapes_from: Path | None = None) -> None:
        """
        Args:
            root: the path that the user gave; sources are named from its last folder on.
            shapes_from: the trace that has the shapes of CUDA graphs; None: those beside each trace.
        """
        self.files: dict[Path, LaunchCounts] = {}
        self.account = LaunchCounts()
        self.problems: list[str] = []
        self._root, self._shapes_from = root, shapes_from
        self._cases: dict[str, dict[str, list[CasePart]]] = {}

    def add_files(self, captures: Sequence[Path]) -> list[str]:
        """Adds captures, with a bar on stderr. Returns the problems of files that cannot be read."""
        errors: list[str] = []
        with progress("ingest, MB", sum(map(size_mb, captures))) as advance:
            for capture in captures:
                with noted(errors, TableError):
                    self.add_file(capture, lambda size: advance(size / 1e6))
        return errors

    def add_file(self, path: Path, on_block: Callable[[int], None] = lambda size: None) -> None:
        """Adds all launches of a capture, or none.

        Raises:
            TableError: the file cannot be read; nothing of it was added.
        """
        read: CaptureReader = kind_of_capture(path).read
        if read is read_torch_trace:
            read = partial(read_torch_trace, shapes_from=self._shapes_from)
        launches = read(path, self._root or path, on_block)
        self.files[path] = launches.counts
        add_counts(self.account, launches.counts)
        self.problems += launches.problems
        for kernel_type, text, part in launches.accepted():
            self._cases.setdefault(kernel_type, {}).setdefault(text, []).append(part)

    def cases(self) -> dict[str, Cases]:
        """Returns all cases by kernel type, in the order in which they were first seen."""
        return {kernel_type: Cases(kernel_type, parts) for kernel_type, parts in self._cases.items()}


def _ingest_part(run_id: str, line: SampleLine) -> CasePart:
    """Returns the launches of a signature in one ingest, as arrays, which take less memory than Python's objects."""
    sums = np.array([total for total, _ in line.counters.values()], dtype=np.float64)
    counts = np.array([count for _, count in line.counters.values()], dtype=np.int64)
    names = _same(tuple(line.counters))
    return CasePart(line.cells, np.array(line.durations_us), (names, sums, counts), line.sources, run_id)


@lru_cache(maxsize=1024)
def _same(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns one object for equal tuples."""
    return names


def pool_cases(ingests: Sequence[Ingest], keys: Collection[CaseKey] | None = None) -> dict[str, Cases]:
    """Returns the cases of ingests by kernel type, in the order in which they were first seen.

    Args:
        ingests: in the order in which they began. An ingest without samples is ignored.
        keys: the wanted cases; None: all.

    Raises:
        OpAtlasError: a file of samples cannot be read.
    """
    found: dict[CaseKey, list[CasePart]] = {}
    replaced: set[CaseKey] = set()
    for ingest in ingests:
        seen = set[CaseKey]()
        for line in read_samples(ingest.samples) if ingest.samples is not None else ():
            key = line.key
            if keys is not None and key not in keys:
                continue
            if ingest.manifest.replace and key not in seen:
                found.pop(key, None)
                replaced.discard(key)
            seen.add(key)
            if line.replaced:
                replaced.add(key)
            else:
                found.setdefault(key, []).append(_ingest_part(ingest.manifest.run_id, line))
    by_type: dict[str, dict[str, list[CasePart]]] = {}
    for (kernel_type, text), parts in found.items():
        by_type.setdefault(kernel_type, {})[text] = parts
    return {kernel_type: Cases(kernel_type, by_type[kernel_type], replaced) for kernel_type in sorted(by_type)}
