"""Statistics over the samples of several ingests, exactly as if all launches were in one capture.

Ingests count in the order in which they began. One that replaces (`--replace`) counts alone for the signatures that
it has, until later ones add to it.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from opatlas.capture.manifest import (
    SAMPLES_SUFFIX,
    IngestManifest,
    Kept,
    manifest_path,
    read_begun,
    read_manifest,
    read_samples,
    samples_path,
)
from opatlas.model.quality import Summary, summarize
from opatlas.store.database import Database
from opatlas.store.manifest import INGEST_PREFIX

#: Kernel type and signature.
Key = tuple[str, str]


@dataclass(frozen=True)
class Ingest:
    """An ingest of a database; `samples` is None if the file of its samples is not there."""

    manifest: IngestManifest
    samples: Path | None


def ingests_of(database: Database) -> list[Ingest]:
    """All ingests of a database, in the order in which they began.

    Raises:
        OpAtlasError: a manifest, or a file of samples that has no manifest beside it, is damaged.
    """
    found = {}
    for path in database.runs_dir.glob(f"{INGEST_PREFIX}*{SAMPLES_SUFFIX}"):
        run_id = path.name.removesuffix(SAMPLES_SUFFIX)
        if not manifest_path(database, run_id).exists():
            # Killed before it wrote its manifest.
            found[run_id] = Ingest(read_begun(path), path)
    for path in database.runs_dir.glob(f"{INGEST_PREFIX}*.json"):
        samples = samples_path(database, path.stem)
        found[path.stem] = Ingest(read_manifest(path), samples if samples.exists() else None)
    return sorted(found.values(), key=lambda ingest: (ingest.manifest.started_at, ingest.manifest.run_id))


@dataclass(frozen=True)
class PooledCase:
    """The launches of a signature in all ingests that count for it.

    Attributes:
        cells: base and Runtime columns of the first launch, empty ones left out.
        run_ids: of the ingests, in the order in which they count.
        durations_us: of all launches, in that order.
        counter_sums: sum over the launches that have the counter, and how many have it, by name.
        sources: the captures of an attention row, as Runtime source_profile names them.
        replaced: whether one of the ingests kept cells that no samples explain, and took their place.
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
        """Mean of each counter over the launches that have it; None if no launch has it."""
        return {name: total / count if count else None for name, (total, count) in self.counter_sums.items()}


class _Part:
    """What one ingest has of a signature, in arrays: in Python's own objects it takes five times the memory."""

    def __init__(self, run_id: str, line: Kept) -> None:
        self.run_id = run_id
        self.cells = line.cells
        self.sources = line.sources
        self.durations_us = array("d", line.durations_us)
        self._names = _same(tuple(line.counters))
        self._sums = array("d", [total for total, _ in line.counters.values()])
        self._counts = array("q", [count for _, count in line.counters.values()])

    def add_counters(self, sums: dict[str, tuple[float, int]]) -> None:
        """Adds its counters to those of other ingests."""
        for name, total, count in zip(self._names, self._sums, self._counts, strict=True):
            before, counted_before = sums.get(name, (0.0, 0))
            sums[name] = before + total, counted_before + count


@lru_cache(maxsize=1024)
def _same(names: tuple[str, ...]) -> tuple[str, ...]:
    """One object for equal tuples."""
    return names


@dataclass
class _Parts:
    """What the ingests have of a signature, from the newest to the oldest.

    Attributes:
        place: of the oldest ingest, and of the line in its file.
        closed: whether an ingest replaced what older ones have.
        replaced: see PooledCase.
    """

    parts: list[_Part] = field(default_factory=list)
    place: tuple[int, int] = (0, 0)
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
    """The cases of a kernel type. Each is made as it is looked at, so that a million need not be there at once."""

    def __init__(self, kernel_type: str) -> None:
        self._kernel_type = kernel_type
        self._parts: dict[str, _Parts] = {}

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[PooledCase]:
        for signature, parts in self._parts.items():
            yield parts.case(self._kernel_type, signature)

    @property
    def signatures(self) -> Collection[str]:
        """Of the cases."""
        return self._parts.keys()

    @property
    def run_ids(self) -> set[str]:
        """The ingests that have samples of one of the cases."""
        return {part.run_id for parts in self._parts.values() for part in parts.parts}

    def put(self, signature: str, parts: _Parts) -> None:
        """Adds a case."""
        self._parts[signature] = parts


def pool(ingests: Sequence[Ingest], keys: Collection[Key] | None = None) -> dict[str, PooledCases]:
    """The cases of the ingests by kernel type, in the order in which they were first seen.

    Args:
        ingests: in the order in which they began. One without samples counts for nothing.
        keys: the cases that are wanted; None: all. Older ingests are not read where newer ones replaced all of these.

    Raises:
        OpAtlasError: a file of samples cannot be read.
    """
    found: dict[Key, _Parts] = {}
    open_keys = None if keys is None else set(keys)
    for number in reversed(range(len(ingests))):
        if open_keys is not None and not open_keys:
            break
        seen = set()
        for place, line, key in _lines(ingests[number], keys):
            seen.add(key)
            parts = found.setdefault(key, _Parts())
            if parts.closed:
                continue
            if line.replaced:
                parts.replaced = True
            else:
                parts.parts.append(_Part(ingests[number].manifest.run_id, line))
                parts.place = number, place
        if ingests[number].manifest.replace:
            for key in seen:
                found[key].closed = True
            if open_keys is not None:
                open_keys -= seen
    pooled: dict[str, PooledCases] = {}
    for (kernel_type, text), parts in sorted(found.items(), key=lambda item: item[1].place):
        if parts.parts:
            pooled.setdefault(kernel_type, PooledCases(kernel_type)).put(text, parts)
    return dict(sorted(pooled.items()))


def keys_of(ingest: Ingest) -> set[Key]:
    """The cases that an ingest has samples of. Raises OpAtlasError."""
    return {key for _, _, key in _lines(ingest, None)}


def _lines(ingest: Ingest, keys: Collection[Key] | None) -> Iterator[tuple[int, Kept, Key]]:
    if ingest.samples is None:
        return
    for place, line in enumerate(read_samples(ingest.samples)):
        key = line.key
        if keys is None or key in keys:
            yield place, line, key
