"""The log of a database: what each run measured, in `runs/{run id}.jsonl.gz`, and what else happened to its rows.

The file of a run has the lines of its journals, compressed: a header, then a record per line. It keeps samples,
assumptions, counters and checked elements, which no column holds. `runs/{run id}.events.gz` beside it has what a fold
replaced and no record has (`Imported`), which runs were pooled (`Pooled`), and which had a clock that was ahead
(`ClocksAhead`): damage of one file costs nothing of the other.
"""

from __future__ import annotations

import gzip
import itertools
import os
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from opatlas.data import journal
from opatlas.data.csv_files import read_table, write_bytes
from opatlas.data.database import Database
from opatlas.data.journal import JournalContents, JournalHeader
from opatlas.data.manifest import INGEST_PREFIX, KNOWN_TIME, Manifest, RunOrder, read_manifests
from opatlas.errors import OpAtlasError
from opatlas.files import open_safely
from opatlas.row.record import Record, is_run_id
from opatlas.row.table import RowTable
from opatlas.typed_json import DecodeError, decode

_SUFFIX, _EVENTS = ".jsonl.gz", ".events.gz"
_REMEDY = "move it away, or restore it"
#: Contents of more bytes than this, and than so many times the packed file, are refused: a small file cannot fill the
#: memory. Packed records take a tenth to a fifth of their size.
_MOST_BYTES, _MOST_TIMES = 256 << 20, 50
_MOST_LINES = 1 << 20
#: The compression level: half the time of level 6, and a tenth more space.
_LEVEL = 4
#: The step from the start of a run to that of the next, where the clock was set back.
_STEP_S = 1e-3
#: The run of lines that belong to no session: those of `opatlas combine`.
COMBINE = "combine"

Why = Literal["replaced", "edited"]


class DamagedLog(OpAtlasError):
    """The log of a run that cannot be read. Its rows do not count as edited."""


class Imported(msgspec.Struct, frozen=True, tag_field="kind", tag="imported"):
    """A row with a duration that no record has, as it was before a fold changed it.

    Attributes:
        row: its cells, without empty ones; Run ID is the run that the row named.
        why: "replaced" by another duration, or "edited": its shapes, dtypes or lengths were changed after its run.
    """

    kernel_type: str
    row: Mapping[str, str]
    why: Why = "replaced"


class Pooled(msgspec.Struct, frozen=True, tag_field="kind", tag="pooled"):
    """The runs whose durations `combine --pool` pooled: all that the log had then. It is an event of `COMBINE`."""

    runs: tuple[str, ...]


class ClocksAhead(msgspec.Struct, frozen=True, tag_field="kind", tag="clocks-ahead"):
    """Runs whose start was in the future when they came into the database: their place in the order is unknown.

    It is an event of `COMBINE`.
    """

    runs: tuple[str, ...]


Event = Imported | Pooled | ClocksAhead


def file_path(database: Database, run_id: str, suffix: str = _SUFFIX) -> Path:
    """Returns the path of a run's records. Raises OpAtlasError if the run id cannot name a file."""
    if not is_run_id(run_id):
        raise OpAtlasError(f"the run id {run_id!r} cannot name a file: use letters, digits and . _ + - only")
    return database.runs_dir / f"{run_id}{suffix}"


def runs(database: Database) -> list[str]:
    """Returns the run ids that have a log, sorted."""
    stems = (path.name.removesuffix(_SUFFIX) for path in database.runs_dir.glob(f"[!.]*{_SUFFIX}"))
    # The samples of ingests have another format (opatlas/capture/samples.py).
    return sorted(stem for stem in stems if not stem.startswith(INGEST_PREFIX))


def add(database: Database, header: JournalHeader, records: Iterable[Record]) -> None:
    """Adds records to the logs of their runs, without duplicates. Each file is replaced in one step.

    Args:
        header: the header of the journal with the records.

    Raises:
        DamagedLog: a file is there that cannot be read.
        OpAtlasError: a file cannot be written.
    """
    of_run: dict[str, list[bytes]] = {}
    for record in records:
        of_run.setdefault(record.run_id, []).append(journal.line(record.to_json()))
    for run_id, lines in of_run.items():
        first = journal.line(asdict(replace(header, run_id=run_id)))
        _add_lines(file_path(database, run_id), lines, first)


def add_events(database: Database, run_id: str, events: Iterable[Event]) -> None:
    """Adds events to the log of a run, without duplicates. Raises as `add`."""
    _add_lines(file_path(database, run_id, _EVENTS), [msgspec.json.encode(event) + b"\n" for event in events])


def _add_lines(path: Path, lines: Iterable[bytes], first: bytes = b"") -> None:
    """Adds the lines that a file lacks; `first` begins a new file."""
    known, packed = set(read_lines(path)) if path.exists() else {first}, b""
    new = [line for line in dict.fromkeys(lines) if line not in known]
    if not new:
        return
    if path.exists():
        # Parts of a gzip file follow each other: what is there is not packed again.
        with open_safely(path) as file:
            packed = file.read()
    else:
        new.insert(0, first)
    write_bytes(path, packed + gzip.compress(b"".join(new), _LEVEL, mtime=0))


def copy(source: Database, target: Database, problems: list[str]) -> None:
    """Adds the log of a database to that of another one.

    Args:
        problems: receives a sentence for each file and each line that cannot be read.

    Raises:
        OpAtlasError: the log of the target cannot be written. It may lack rows of its run, and these would count as
            edited.
    """
    for run_id in runs(source):
        try:
            _copy_run(source, target, run_id, problems)
        except DamagedLog as error:
            problems.append(str(error))
    for run_id in _with_events(source):
        add_events(target, run_id, events(source, problems, [run_id]))
    replaced: dict[str, list[Imported]] = {}
    for run_id, event in replaced_tables(source, problems):
        replaced.setdefault(run_id, []).append(event)
    for run_id, events_of_run in replaced.items():
        add_events(target, run_id, events_of_run)


def _copy_run(source: Database, target: Database, run_id: str, problems: list[str]) -> None:
    path, there = file_path(source, run_id), file_path(target, run_id)
    known = set(read_lines(there)) if there.exists() else set[bytes]()
    lines = read_lines(path)
    header, new = journal.parse([next(lines)], path).header, []
    for number, line in enumerate(lines, start=2):
        if line not in known:
            try:
                if Record.decode(line, f"{path}:{number}").run_id != run_id:
                    raise DecodeError(f"{path}:{number}", "a record of another run")
                new.append(line)
            except DecodeError as error:
                problems.append(str(error))
    _add_lines(there, new, journal.line(asdict(replace(header, run_id=run_id))))


def read(database: Database, run_id: str) -> JournalContents:
    """Reads the records of a run, in the order of measurement within each process.

    Raises:
        OpAtlasError: the run id cannot name a file.
        DamagedLog: the file cannot be read.
    """
    path = file_path(database, run_id)
    return journal.parse(read_lines(path), path)


def records(database: Database, problems: list[str], of_runs: Container[str] | None = None) -> Iterator[Record]:
    """Yields the records of runs.

    Args:
        problems: receives a sentence for each log that cannot be read.
        of_runs: these runs only; None: all.
    """
    for run_id in runs(database):
        if of_runs is not None and run_id not in of_runs:
            continue
        try:
            yield from read(database, run_id).records
        except OpAtlasError as error:
            problems.append(str(error))


def all_records(database: Database, problems: list[str], of_runs: Container[str] | None = None) -> Iterator[Record]:
    """Yields the records of runs; after the record of a row, the record of the kernel launched in its place.

    `problems` and `of_runs` are as for `records`.
    """
    for record in records(database, problems, of_runs):
        yield record
        if (launched := record.launched_record()) is not None:
            yield launched


def _with_events(database: Database) -> list[str]:
    """Returns the run ids that have events, sorted."""
    return sorted(path.name.removesuffix(_EVENTS) for path in database.runs_dir.glob(f"[!.]*{_EVENTS}"))


def events(database: Database, problems: list[str], of_runs: Iterable[str] | None = None) -> Iterator[Event]:
    """Yields the events of runs. `problems` and `of_runs` are as for `records`, here with `COMBINE`."""
    any_event: Any = Event
    for run_id in _with_events(database) if of_runs is None else of_runs:
        path = file_path(database, run_id, _EVENTS)
        try:
            for number, line in enumerate(read_lines(path) if path.exists() else (), start=1):
                yield decode(line, any_event, f"{path}:{number}")
        except OpAtlasError as error:
            problems.append(str(error))


def imported(database: Database, problems: list[str], why: Why = "replaced") -> Iterator[Imported]:
    """Yields the rows that folds replaced and no record has, or those that were edited."""
    tables = (event for _, event in replaced_tables(database, problems))
    for event in itertools.chain(events(database, problems), tables):
        if isinstance(event, Imported) and event.why == why:
            yield event


def replaced_tables(database: Database, problems: list[str]) -> Iterator[tuple[str, Imported]]:
    """Yields the rows that earlier versions kept in tables, with the run that replaced them or found them edited."""
    reasons: tuple[Why, ...] = ("replaced", "edited")
    for why in reasons:
        for path in sorted(database.runs_dir.glob(f"[!.]*.{why}/[!.]*.csv")):
            try:
                table = RowTable(path.stem, path, read_table(path))
            except OpAtlasError as error:
                problems.append(str(error))
                continue
            run_id = path.parent.name.removesuffix(f".{why}")
            for cells in table.rows():
                yield run_id, Imported(path.stem, {name: cell for name, cell in cells.items() if cell}, why)


def run_order(database: Database, manifests: Mapping[str, Manifest] | None = None) -> RunOrder:
    """Returns the order of the runs of a database.

    Args:
        manifests: the manifests of its runs, and of others; None: they are read.
    """
    # Run ids have the second of a start, manifests its fraction.
    known = read_manifests(database, []) if manifests is None else manifests
    found = events(database, [], [COMBINE])
    ahead = {run for event in found if isinstance(event, ClocksAhead) for run in event.runs}
    return RunOrder({run: each.started_at for run, each in known.items()}, ahead)


def start_of_run(database: Database, run_id: str, now: float) -> float:
    """Returns the start of a run that begins now, in seconds since the epoch.

    It is after the starts of all runs of the database, also if the clock was set back: a new run is the newest.
    """
    manifests = read_manifests(database, [])
    order = run_order(database, manifests)
    others = (order.age(run) for run in manifests if run != run_id)
    starts = [started_at for known, started_at, _ in others if known == KNOWN_TIME]
    return max([now, *(started_at + _STEP_S for started_at in starts)])


def read_lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of the log of a run, as they are, with line ends. Raises DamagedLog."""
    try:
        with open_safely(path) as packed, gzip.open(packed) as file:
            most = left = max(_MOST_BYTES, _MOST_TIMES * os.fstat(packed.fileno()).st_size)
            for number in itertools.count(1):
                # No longer line than the limit is read.
                line = file.readline(left + 1)
                left -= len(line)
                if left < 0 or number > _MOST_LINES:
                    limit = f"{most:,} bytes" if left < 0 else f"{_MOST_LINES:,} lines"
                    raise DamagedLog(f"{path}: a log of more than {limit}, which is too large: {_REMEDY}")
                if number == 1 and path.name.endswith(_SUFFIX):
                    journal.parse([line], path)
                elif not line:
                    return
                yield line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedLog(f"{path}: not a log of OpAtlas ({error}): {_REMEDY}") from None
    except journal.NotAJournal as error:
        raise DamagedLog(str(error)) from None
    except OSError as error:
        raise DamagedLog(f"{path}: cannot be read ({error.strerror}): make it readable") from None
