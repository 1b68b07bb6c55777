"""Cases: launches grouped by signature, over several capture files and over several ingests.

A case is a signature (opatlas.row.signature): rows with the same kernel type, shapes, dtypes and formats after
normalization. For some kernel types (Slice, Index, Transpose) a signature covers rows with different cells. They still
are one case with one row of the CSV, because a lookup could not tell two rows of one signature apart. A case has the
cells of its first launch.

Ingests count in the order in which they began. An ingest with `--replace` hides earlier ingests for its signatures.
The statistics of several ingests equal the statistics of one capture with all launches.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from opatlas.capture.capture_reader import Capture, NotNumericError, read_capture_header
from opatlas.capture.launches import CaptureLaunches, LaunchCounts
from opatlas.capture.samples import SampleLine, read_samples
from opatlas.counts import add_counts
from opatlas.data.ingests import Ingest
from opatlas.errors import TableError
from opatlas.files import size_mb
from opatlas.progress import progress
from opatlas.row.quality import Summary, summarize

#: The launches of a capture, and the number of a group in it.
_LaunchGroup = tuple[CaptureLaunches, int]


@dataclass(frozen=True)
class CaptureCase:
    """The launches of one signature.

    Attributes:
        cells: the base columns of the first launch, without quotes.
        durations_us: durations of all launches, in the order read.
        counter_sums: for each counter the sum over the launches that have the counter, and their number.
        sources: the capture files, in the order read.
    """

    kernel_type: str
    signature: str
    cells: Mapping[str, str]
    durations_us: tuple[float, ...]
    counter_sums: Mapping[str, tuple[float, int]]
    sources: tuple[Path, ...]

    @cached_property
    def durations(self) -> Summary:
        """Statistics of all launches."""
        return summarize(self.durations_us)

    @property
    def counters(self) -> dict[str, float | None]:
        """Mean of each counter over the launches that have the counter; None if no launch has it."""
        return {name: total / count if count else None for name, (total, count) in self.counter_sums.items()}


class Aggregate:
    """The cases of several captures.

    Attributes:
        account: counts of all rows.
        files: the captures that were read, each with the counts of its rows.
        problems: rows that were left out because they are invalid.
    """

    def __init__(self) -> None:
        self.files: dict[Path, LaunchCounts] = {}
        self.account = LaunchCounts()
        self.problems: list[str] = []
        #: By kernel type and signature.
        self._cases: dict[str, dict[str, list[_LaunchGroup]]] = {}

    def add_files(self, captures: Sequence[Path]) -> list[str]:
        """Adds captures, with a bar on stderr. Returns the problems of files that cannot be read."""
        errors = []
        with progress("ingest, MB", sum(map(size_mb, captures))) as advance:
            for capture in captures:
                try:
                    self.add_file(capture, lambda size: advance(size / 1e6))
                except TableError as error:
                    errors.append(str(error))
        return errors

    def add_file(self, path: Path, on_block: Callable[[int], None] = lambda size: None) -> None:
        """Adds all launches of a capture, or none.

        Raises:
            TableError: the file cannot be read; nothing of it was added.
        """
        header = read_capture_header(path)
        try:
            launches = CaptureLaunches(Capture(path, header), on_block)
        except NotNumericError:
            launches = CaptureLaunches(Capture(path, header, numbers_as_text=True), on_block)
        if not launches.account.rows:
            raise TableError(path, "a header without rows", "Take the capture again, or leave the file out")
        self.files[path] = launches.account
        add_counts(self.account, launches.account)
        self.problems += launches.problems
        for number, group in launches.accepted():
            of_type = self._cases.setdefault(group.kernel_type, {})
            of_type.setdefault(group.signature, []).append((launches, number))

    def cases(self) -> dict[str, CaptureCases]:
        """Returns all cases by kernel type, in the order in which they were first seen."""
        return {kernel_type: CaptureCases(kernel_type, parts) for kernel_type, parts in self._cases.items()}


class CaptureCases:
    """The cases of a kernel type. Each case is computed on access, so that a million cases need not fit in memory."""

    def __init__(self, kernel_type: str, parts: Mapping[str, list[_LaunchGroup]]) -> None:
        self._kernel_type = kernel_type
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[CaptureCase]:
        return map(self.__getitem__, self._parts)

    def __contains__(self, text: object) -> bool:
        return text in self._parts

    def __getitem__(self, text: str) -> CaptureCase:
        """Returns the case of a signature. Raises KeyError."""
        parts = self._parts[text]
        durations_us = np.concatenate([launches.durations_of(number) for launches, number in parts])
        first, number = parts[0]
        return CaptureCase(
            kernel_type=self._kernel_type,
            signature=text,
            cells=first.cells_of(number),
            durations_us=tuple(durations_us.tolist()),
            counter_sums=_counter_sums(parts),
            sources=tuple(dict.fromkeys(launches.path for launches, _ in parts)),
        )

    @property
    def cells(self) -> Iterator[tuple[str, Mapping[str, str], int]]:
        """Signature, cells and number of launches of each case, without its durations."""
        for text, parts in self._parts.items():
            first, number = parts[0]
            yield text, first.cells_of(number), sum(len(launches.durations_of(n)) for launches, n in parts)


def _counter_sums(parts: Sequence[_LaunchGroup]) -> dict[str, tuple[float, int]]:
    sums: dict[str, tuple[float, int]] = {}
    for launches, number in parts:
        for name, total, count in launches.counters_of(number):
            before, counted_before = sums.get(name, (0.0, 0))
            sums[name] = before + total, counted_before + count
    return sums


#: Kernel type and signature.
CaseKey = tuple[str, str]


@dataclass(frozen=True)
class PooledCase:
    """The launches of a signature in all ingests that count.

    Attributes:
        cells: base and Runtime columns of the first launch, without empty ones.
        run_ids: the ingests, in the order in which they count.
        durations_us: durations of all launches, in that order.
        counter_sums: for each counter the sum over the launches that have the counter, and their number.
        sources: the captures of an attention row, as Runtime source_profile names them.
        replaced: whether an ingest has replaced durations that no samples explain.
    """

    kernel_type: str
    signature: str
    cells: Mapping[str, str]
    run_ids: tuple[str, ...]
    durations_us: array[float]
    counter_sums: Mapping[str, tuple[float, int]]
    sources: tuple[str, ...]
    replaced: bool

    @property
    def durations(self) -> Summary:
        """Statistics of all launches."""
        return summarize(self.durations_us)

    @property
    def counters(self) -> dict[str, float | None]:
        """Mean of each counter over the launches that have the counter; None if no launch has it."""
        return {name: total / count if count else None for name, (total, count) in self.counter_sums.items()}


class _IngestPart:
    """The launches of a signature in one ingest, as arrays, which take a fifth of the memory of Python's objects."""

    def __init__(self, run_id: str, line: SampleLine) -> None:
        self.run_id = run_id
        self.cells = line.cells
        self.sources = line.sources
        self.durations_us = array("d", line.durations_us)
        self._names = _same(tuple(line.counters))
        self._sums = array("d", [total for total, _ in line.counters.values()])
        self._counts = array("q", [count for _, count in line.counters.values()])

    def add_counters(self, sums: dict[str, tuple[float, int]]) -> None:
        """Adds the counters to the sums of other ingests."""
        for name, total, count in zip(self._names, self._sums, self._counts, strict=True):
            before, counted_before = sums.get(name, (0.0, 0))
            sums[name] = before + total, counted_before + count


@lru_cache(maxsize=1024)
def _same(names: tuple[str, ...]) -> tuple[str, ...]:
    """Returns one object for equal tuples."""
    return names


@dataclass
class _CaseParts:
    """The launches of a signature in the ingests, from the newest to the oldest.

    Attributes:
        position: position of the oldest ingest, and of the line in its file.
        closed: whether an ingest hides the older ingests.
        replaced: see PooledCase.
    """

    parts: list[_IngestPart] = field(default_factory=list)
    position: tuple[int, int] = (0, 0)
    closed: bool = False
    replaced: bool = False

    def case(self, kernel_type: str, signature: str) -> PooledCase:
        durations_us: array[float] = array("d")
        sums: dict[str, tuple[float, int]] = {}
        for part in reversed(self.parts):
            durations_us += part.durations_us
            part.add_counters(sums)
        return PooledCase(
            kernel_type=kernel_type,
            signature=signature,
            cells=self.parts[-1].cells,
            run_ids=tuple(part.run_id for part in reversed(self.parts)),
            durations_us=durations_us,
            counter_sums=sums,
            sources=tuple(dict.fromkeys(name for part in reversed(self.parts) for name in part.sources)),
            replaced=self.replaced,
        )


class PooledCases:
    """The cases of a kernel type. Each case is computed on access, so that a million cases need not fit in memory."""

    def __init__(self, kernel_type: str) -> None:
        self._kernel_type = kernel_type
        self._parts: dict[str, _CaseParts] = {}

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[PooledCase]:
        for signature, parts in self._parts.items():
            yield parts.case(self._kernel_type, signature)

    @property
    def signatures(self) -> Collection[str]:
        """The signatures of the cases."""
        return self._parts.keys()

    @property
    def run_ids(self) -> set[str]:
        """The ingests with samples of any of the cases."""
        return {part.run_id for parts in self._parts.values() for part in parts.parts}

    def put(self, signature: str, parts: _CaseParts) -> None:
        """Adds a case."""
        self._parts[signature] = parts


def pool_cases(ingests: Sequence[Ingest], keys: Collection[CaseKey] | None = None) -> dict[str, PooledCases]:
    """Returns the cases of ingests by kernel type, in the order in which they were first seen.

    Args:
        ingests: in the order in which they began. An ingest without samples is ignored.
        keys: the wanted cases; None: all. Ingests that later ones hide for all these cases are not read.

    Raises:
        OpAtlasError: a file of samples cannot be read.
    """
    found: dict[CaseKey, _CaseParts] = {}
    open_keys = None if keys is None else set(keys)
    for number in reversed(range(len(ingests))):
        if open_keys is not None and not open_keys:
            break
        seen = set()
        for position, line, key in _lines(ingests[number], keys):
            seen.add(key)
            parts = found.setdefault(key, _CaseParts())
            if parts.closed:
                continue
            if line.replaced:
                parts.replaced = True
            elif (part := _IngestPart(ingests[number].manifest.run_id, line)).durations_us:
                parts.parts.append(part)
                parts.position = number, position
        if ingests[number].manifest.replace:
            for key in seen:
                found[key].closed = True
            if open_keys is not None:
                open_keys -= seen
    pooled: dict[str, PooledCases] = {}
    for (kernel_type, text), parts in sorted(found.items(), key=lambda item: item[1].position):
        if parts.parts:
            pooled.setdefault(kernel_type, PooledCases(kernel_type)).put(text, parts)
    return dict(sorted(pooled.items()))


def case_keys(ingest: Ingest) -> set[CaseKey]:
    """Returns the cases that an ingest has samples of. Raises OpAtlasError."""
    return {key for _, _, key in _lines(ingest, None)}


def _lines(ingest: Ingest, keys: Collection[CaseKey] | None) -> Iterator[tuple[int, SampleLine, CaseKey]]:
    if ingest.samples is None:
        return
    for position, line in enumerate(read_samples(ingest.samples)):
        key = line.key
        if keys is None or key in keys:
            yield position, line, key
