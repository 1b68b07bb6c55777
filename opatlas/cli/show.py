"""Shows the contents of a database: rows by kernel type and state, their quality, and the devices of their runs.

Without DB the default databases are listed, with --kernels the kernel types that have a replay.
"""

from __future__ import annotations

import argparse
import json
import textwrap
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from opatlas.capture.manifest import read_manifest
from opatlas.checks.check import CheckedTable
from opatlas.cli.kernels import show_kernels
from opatlas.combine.provenance import run_origins
from opatlas.errors import OpAtlasError, UsageError
from opatlas.files import expect_folder
from opatlas.model.communication import COLLECTIVES
from opatlas.model.location import ROOT, list_databases, parse_path, shipped_note
from opatlas.model.quality import NOISE_LIMIT, Quality, is_noisy
from opatlas.model.schema import (
    CACHE_STATE,
    INSTRUMENT,
    POOLED_MACHINES,
    QUALITY,
    STATUS,
    Status,
)
from opatlas.store import journal
from opatlas.store.csv_files import read_frame, write_text
from opatlas.store.database import Database
from opatlas.store.manifest import INGEST_PREFIX, Manifest, read_manifests
from opatlas.text import align_numbers, pluralize, print_problems, show

_COLUMNS = 80
#: Room for the name of a kernel type; longer names get a line of their own.
_LEAST_NAME = 12
_DAY_S = 86400.0
_COMPOSED = "composed"
_NUMBERS = ("rows", "measured", _COMPOSED, "captured", "failed", "missing")
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
        problems: messages about files that cannot be read.
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
    problems: Sequence[str] = ()

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
    messages = [each.kernel_type for each in COLLECTIVES if database.csv_path(each.kernel_type).is_file()]
    for kernel_type in (*database.kernel_types(), *messages):
        path = database.csv_path(kernel_type)
        try:
            tables.append(_table_overview(CheckedTable(kernel_type, path, read_frame(path, kernel_type))))
        except OpAtlasError as error:
            problems.append(str(error))
    manifests = [each for each in read_manifests(database, problems).values() if _has_measured(each)]
    ingested_at = []
    for path in sorted(database.runs_dir.glob(f"{INGEST_PREFIX}*.json")):
        try:
            ingested_at.append(read_manifest(path).started_at)
        except (OpAtlasError, OSError) as error:
            problems.append(str(error))
    devices = Counter(origin for manifest in manifests for origin in set(map(str, run_origins(manifest))))
    named = parse_path(database.path)
    return Overview(
        str(database.path),
        tables,
        dict(devices.most_common()),
        " ".join([named[0], *(f"{name} {version}" for name, version in named[1].items())]) if named else "",
        shipped_note(database.path),
        len(manifests),
        len(ingested_at),
        max([*ingested_at, *(manifest.started_at for manifest in manifests)], default=None),
        len(journal.journals(database)),
        problems,
    )


def _has_measured(manifest: Manifest) -> bool:
    """Returns whether a run has replayed rows; manifests of `pytest shapes/` have not."""
    return bool(manifest.device_names)


def _table_overview(table: CheckedTable) -> KernelTypeOverview:
    replayed, captured = table.replayed.us > 0, table.captured.us > 0
    own = table.own_kernel.us > 0
    statuses = table.cells(STATUS)
    noise = table.noise[own & ~np.isnan(table.noise)]
    judged = [Quality.from_cell(cell) for cell in table.cells(QUALITY)]
    noisy = [
        has and is_noisy(quality, noise_of)
        for has, quality, noise_of in zip(own.tolist(), judged, table.noise.tolist(), strict=True)
    ]
    qualities = np.where(table.compositions, Quality.COMPOSITION.value, table.cells(QUALITY)).tolist()
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
        composed=int(table.compositions.sum()),
        captured=int(captured.sum()),
        failed=sum(failed),
        missing=int((~(replayed | captured)).sum()),
        noise=float(np.median(noise)) if len(noise) else None,
        noisy=sum(noisy),
        quality=of_replayed(qualities, _NOT_JUDGED),
        cache=of_replayed(table.cells(CACHE_STATE), "not known"),
        instrument=of_replayed(table.cells(INSTRUMENT), "not known"),
        status=dict(Counter(statuses)),
        machines=dict(Counter(filter(None, table.cells(POOLED_MACHINES)))),
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "exit status: 0 done; 1 a file could not be read; 2 no such database"
    parser.add_argument(
        "database",
        type=Path,
        nargs="?",
        metavar="DB",
        help="folder of {KernelType}.csv files (default: the default databases of all devices are listed)",
    )
    parser.add_argument(
        "--kernels",
        nargs="*",
        metavar="NAME",
        help="list the kernel types that have a replay, with their NPU calls: all, or only those with NAME in "
        "their names, or of the family NAME (default: databases are shown)",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="also write what is shown, as JSON (default: not written)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Prints the contents and returns the exit status that the help explains. Raises OpAtlasError."""
    path: Path | None = arguments.database
    if arguments.kernels is not None:
        if path is not None:
            raise UsageError(f"--kernels lists kernel types, and {path} is a database: leave one of them out")
        show_kernels(arguments.kernels, arguments.json)
        return 0
    if path is not None:
        expect_folder(path, f"name a database, or none for a list of the databases below {ROOT}")
        found = [read_overview(Database(path))]
        lines = list(_page(found[0]))
    else:
        found = [read_overview(Database(each)) for each in list_databases(ROOT)]
        lines = _list(found) if found else [f"no database below {ROOT}: `opatlas bench` makes one for this machine"]
    show("\n".join(lines))
    if arguments.json is not None:
        content = [asdict(each) for each in found]
        write_text(arguments.json, json.dumps(content if path is None else content[0], indent=2) + "\n")
    problems = [problem for each in found for problem in each.problems]
    print_problems(problems)
    return 1 if problems else 0


def _page(found: Overview) -> Iterable[str]:
    yield found.path
    facts = [
        ("device", _counts(found.devices, "run") or found.folder or "not known"),
        ("shipped", found.shipped),
        (
            "runs",
            ", ".join(filter(None, [pluralize(found.runs, "replay"), pluralize(found.ingests, "ingest"), _age(found)])),
        ),
        ("unmerged", pluralize(found.unmerged, "journal") if found.unmerged else ""),
        ("machines", ", ".join(f"{count:,} rows on {each}" for each, count in found.counts("machines").items())),
        ("cache", _counts(found.counts("cache"))),
        ("instrument", _counts(found.counts("instrument"))),
        ("quality", _counts(found.counts("quality"))),
        ("status", _counts({status or "never run": count for status, count in found.counts("status").items()})),
    ]
    for name, text in facts:
        if text:
            yield textwrap.fill(text, _COLUMNS, initial_indent=f"{name:12}", subsequent_indent=" " * 12)
    yield ""
    if not found.kernel_types:
        yield "no kernel types: `opatlas ingest` or `opatlas shapes` adds rows"
        return
    numbers = _shown([found])
    header = ("kernel type", *numbers, "noise", "noisy")
    rows = [_row(each, numbers) for each in found.kernel_types]
    total = [f"{found.total(what):,}" for what in numbers]
    noise = [each.noise for each in found.kernel_types if each.noise is not None]
    middle = _percent(median(noise) if noise else None)
    rows.append((pluralize(len(found.kernel_types), "kernel type"), *total, middle, f"{found.total('noisy'):,}"))
    yield from align_numbers([header, *rows], least=_LEAST_NAME)
    yield ""
    yield "noise: standard deviation / mean of a measured row, the median of all"
    if _COMPOSED in numbers:
        yield "composed: several torch operators were measured in place of the kernel"
    yield f"noisy: not quiet by its Quality; without one: noise over {NOISE_LIMIT * 100:.0f} %"
    yield "missing: no duration; failed rows are among them"


def _shown(databases: Iterable[Overview]) -> list[str]:
    """Returns the numbers of a table of these databases: compositions only if there are some."""
    composed = any(each.total(_COMPOSED) for each in databases)
    return [what for what in _NUMBERS if composed or what != _COMPOSED]


def _row(each: KernelTypeOverview, numbers: Iterable[str]) -> tuple[str, ...]:
    return (
        each.kernel_type,
        *(f"{number:,}" if (number := getattr(each, what)) else "" for what in numbers),
        _percent(each.noise),
        str(each.noisy or ""),
    )


def _list(found: Sequence[Overview]) -> list[str]:
    shown = [what for what in _shown(found) if what != "failed"]
    header = ("database", *shown, "newest")
    rows = [
        (
            str(Path(each.path).relative_to(ROOT)),
            *(f"{each.total(what):,}" for what in shown),
            _age(each),
        )
        for each in found
    ]
    return [str(ROOT), *align_numbers([header, *rows])]


def _counts(counts: Mapping[str, int], unit: str = "") -> str:
    return ", ".join(
        f"{name} ({pluralize(count, unit)})" if unit else f"{name} {count:,}" for name, count in counts.items()
    )


def _percent(noise: float | None) -> str:
    return "" if noise is None else f"{noise * 100:.1f} %"


def _age(found: Overview) -> str:
    if found.last_run_at is None:
        return ""
    day = time.strftime("%Y-%m-%d", time.gmtime(found.last_run_at))
    days = int((time.time() - found.last_run_at) // _DAY_S)
    return f"{day} ({pluralize(days, 'day')} ago)" if days > 0 else f"{day} (today)"
