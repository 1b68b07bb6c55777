"""A database in numbers: rows by kernel type and state, their quality, and the devices of their runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from opatlas.ask.compare.databases import with_implementations
from opatlas.data import journal
from opatlas.data.database import Database
from opatlas.data.origin import Provenance, joined
from opatlas.errors import noted
from opatlas.row.columns import POOLED_MACHINES, QUALITY, STATUS
from opatlas.row.location import parse_path
from opatlas.row.quality import Quality
from opatlas.row.status import Status
from opatlas.row.table import RowTable

#: The quality of a row without the column Quality.
_NOT_JUDGED = "not judged"


@dataclass(frozen=True)
class KernelTypeOverview:
    """The contents of the CSV of a kernel type. A row may be both measured and captured.

    Attributes:
        measured, captured: rows with a duration of a replay of the kernel, of a capture.
        composed: rows with a duration of a replay of several torch operators in place of the kernel.
        failed: rows that were run and have no replayed duration.
        missing: rows with neither duration, failed ones included.
        noise: median of standard deviation / mean over the measured rows; None if no row has both.
        noisy: measured rows whose Quality is not quiet, and rows without Quality above NOISE_LIMIT.
        quality, cache, instrument: measured and composed rows by the cell of these columns.
        status: rows by status; "" if a row was never run.
        machines: pooled rows by the number of machines that measured them.
    """

    kernel_type: str
    rows: int
    measured: int
    composed: int
    captured: int
    failed: int
    missing: int
    noise: float | None
    noisy: int
    quality: Mapping[str, int]
    cache: Mapping[str, int]
    instrument: Mapping[str, int]
    status: Mapping[str, int]
    machines: Mapping[str, int]


@dataclass(frozen=True)
class Overview:
    """The contents of a database.

    Attributes:
        devices: number of runs by device, versions and threads.
        folder: device and versions by the names of the folders; "" for other names.
        shipped: the note of a database that ships with OpAtlas; "" for other databases.
        runs, ingests: their numbers.
        last_run_at: start of the newest run or ingest in seconds since the epoch; None if no start is known.
        unmerged: number of journals of sessions that run or were killed.
        implementations: others than that of the database that were measured on its rows, with their versions.
        problems: messages about files that cannot be read.
        device: the device that answers questions; "" if unknown.
        captured_on: number of ingests by the device of their captures.
    """

    path: str
    kernel_types: Sequence[KernelTypeOverview]
    devices: Mapping[str, int] = field(default_factory=dict)
    folder: str = ""
    shipped: str = ""
    runs: int = 0
    ingests: int = 0
    last_run_at: float | None = None
    unmerged: int = 0
    implementations: Sequence[str] = ()
    problems: Sequence[str] = ()
    device: str = ""
    captured_on: Mapping[str, int] = field(default_factory=dict)

    def total(self, what: str) -> int:
        """Returns the sum of a number over all kernel types."""
        return sum(int(getattr(each, what)) for each in self.kernel_types)

    def counts(self, what: str) -> dict[str, int]:
        """Returns the rows by quality, cache, ... over all kernel types, the most frequent first."""
        counts: Counter[str] = Counter()
        for each in self.kernel_types:
            counts.update(getattr(each, what))
        return dict(counts.most_common())


def read_overview(database: Database) -> Overview:
    """Returns the contents of a database; a file that cannot be read becomes a problem."""
    problems: list[str] = []
    tables = []
    for kernel_type in database.kernel_types_and_messages():
        with noted(problems):
            tables.append(_table_overview(database.read(kernel_type)))
    provenance = Provenance(database)
    # Manifests of `pytest shapes/` name no device.
    manifests = [each for each in provenance.manifests.values() if each.device_names]
    ingests = [ingest.manifest for ingest in provenance.ingests]
    captured_on = Counter(joined(provenance.captured(ingest.run_id)) for ingest in ingests)
    devices = Counter(origin for origins in provenance.origins.values() for origin in set(map(str, origins)))
    named = parse_path(database.path)
    return Overview(
        str(database.path),
        tables,
        dict(devices.most_common()),
        " ".join([named[0], *(f"{name} {version}" for name, version in named[1].items())]) if named else "",
        provenance.shipped,
        len(manifests),
        len(ingests),
        max([each.started_at for of_kind in (ingests, manifests) for each in of_kind], default=None),
        len(journal.journals(database)),
        [each.label for each in with_implementations(database.path)[1:]] if tables else [],
        [*problems, *provenance.problems],
        provenance.device,
        dict(captured_on.most_common()),
    )


def _table_overview(table: RowTable) -> KernelTypeOverview:
    durations = table.replayed
    replayed, captured, own = durations.known, table.captured.known, durations.of_kernel
    composed = replayed & ~own
    statuses = table.cells(STATUS)
    noise = durations.noise[own & (durations.noise > 0)]
    qualities = np.where(composed, Quality.COMPOSITION.value, table.cells(QUALITY)).tolist()
    failed = [
        not has and bool(status) and status != Status.MEASURED.value
        for has, status in zip(replayed.tolist(), statuses, strict=True)
    ]

    def of_replayed(cells: Iterable[str], unknown: str) -> dict[str, int]:
        return dict(Counter(cell or unknown for cell, has in zip(cells, replayed.tolist(), strict=True) if has))

    return KernelTypeOverview(
        table.kernel_type,
        rows=len(table),
        measured=int(own.sum()),
        composed=int(composed.sum()),
        captured=int(captured.sum()),
        failed=sum(failed),
        missing=int((~(replayed | captured)).sum()),
        noise=float(np.median(noise)) if len(noise) else None,
        noisy=int((own & durations.noisy).sum()),
        quality=of_replayed(qualities, _NOT_JUDGED),
        cache=of_replayed(durations.cache, "not known"),
        instrument=of_replayed(durations.instrument, "not known"),
        status=dict(Counter(statuses)),
        machines=dict(Counter(filter(None, table.cells(POOLED_MACHINES)))),
    )
