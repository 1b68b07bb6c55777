"""Statistics over the samples of several ingests, exactly as if all launches were in one capture.

Ingests count in the order in which they began. One that replaces (`--replace`) counts alone for the signatures that
it has, until later ones add to it.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from database.ingest.manifest import (
    SAMPLES_SUFFIX,
    IngestManifest,
    manifest_path,
    read_manifest,
    samples_path,
)
from database.ingest.samples_file import Kept, read_begun, read_samples
from database.manifest import INGEST_PREFIX
from database.statistics import Summary, summarize
from database.store import Database

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


class _Parts:
    """What the ingests have of a signature, collected from the newest to the oldest."""

    def __init__(self) -> None:
        self.closed = self.replaced = False
        self._parts: list[tuple[str, Kept, array[float]]] = []
        #: Of the oldest ingest, and the line in its file.
        self.place = (0, 0)

    @property
    def any(self) -> bool:
        """Whether an ingest has samples."""
        return bool(self._parts)

    def add(self, run_id: str, line: Kept, place: tuple[int, int]) -> None:
        # 8 bytes for each launch, where a list has 32.
        self._parts.append((run_id, replace(line, durations_us=[]), array("d", line.durations_us)))
        self.place = place

    def case(self, key: Key) -> PooledCase:
        durations_us: array[float] = array("d")
        sums: dict[str, tuple[float, int]] = {}
        for _, line, part_us in reversed(self._parts):
            durations_us += part_us
            for name, (total, count) in line.counters.items():
                before, counted_before = sums.get(name, (0.0, 0))
                sums[name] = before + total, counted_before + count
        lines = [line for _, line, _ in reversed(self._parts)]
        return PooledCase(
            *key,
            cells=lines[0].cells,
            run_ids=tuple(run_id for run_id, _, _ in reversed(self._parts)),
            durations_us=durations_us,
            counter_sums=sums,
            sources=tuple(dict.fromkeys(name for line in lines for name in line.sources)),
            replaced=self.replaced,
        )


def pool(ingests: Sequence[Ingest], keys: Collection[Key] | None = None) -> dict[str, list[PooledCase]]:
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
                parts.add(ingests[number].manifest.run_id, line, (number, place))
        if ingests[number].manifest.replace:
            for key in seen:
                found[key].closed = True
            if open_keys is not None:
                open_keys -= seen
    pooled: dict[str, list[PooledCase]] = {}
    for key, parts in sorted(found.items(), key=lambda item: item[1].place):
        if parts.any:
            pooled.setdefault(key[0], []).append(parts.case(key))
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
