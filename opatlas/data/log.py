"""The log of a database: what each run measured, in `runs/{run id}.jsonl.gz`, and what else happened to its rows.

The file of a run has the lines of its journals, compressed: a header, then a record per line. It keeps samples,
assumptions, counters and checked elements, which no column holds. `runs/{run id}.events.gz` beside it has what a fold
replaced and no record has (`Imported`), and which runs were pooled (`Pooled`): damage of one file costs nothing of the
other.
"""

from __future__ import annotations

import gzip
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from sys import intern
from typing import Any, Literal, NamedTuple

import msgspec

from opatlas.data import journal
from opatlas.data.cells import microseconds
from opatlas.data.csv_files import write_bytes
from opatlas.data.database import Database
from opatlas.data.journal import JournalContents, JournalHeader
from opatlas.data.manifest import INGEST_PREFIX, KNOWN_TIME, Manifest, RunOrder, read_manifests
from opatlas.errors import OpAtlasError, noted
from opatlas.files import BROKEN_GZIP, open_safely
from opatlas.grouping import grouped
from opatlas.progress import gc_paused
from opatlas.row.columns import RUN_ID
from opatlas.row.communication import row_kind
from opatlas.row.quality import typical_mean
from opatlas.row.record import Record, RowName, is_run_id
from opatlas.row.signature import signature
from opatlas.row.status import Status
from opatlas.typed_json import decode

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
    """The log of a run, or the samples of an ingest, that cannot be read. Its rows do not count as edited."""


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


Event = Imported | Pooled


def file_path(database: Database, run_id: str, suffix: str = _SUFFIX) -> Path:
    """Returns the path of a run's records. Raises OpAtlasError if the run id cannot name a file."""
    if not is_run_id(run_id):
        raise OpAtlasError(f"the run id {run_id!r} cannot name a file: use letters, digits and . _ + - only")
    return database.runs_dir / f"{run_id}{suffix}"


def runs(database: Database) -> list[str]:
    """Returns the run ids that have a log, sorted."""
    stems = (path.name.removesuffix(_SUFFIX) for path in database.runs_dir.glob(f"[!.]*{_SUFFIX}"))
    # The samples of ingests have another format (opatlas/capture/cases.py).
    return sorted(stem for stem in stems if not stem.startswith(INGEST_PREFIX))


def add(database: Database, header: JournalHeader, records: Iterable[Record]) -> None:
    """Adds records to the logs of their runs, without duplicates. Each file is replaced in one step.

    Args:
        header: the header of the journal with the records.

    Raises:
        DamagedLog: a file is there that cannot be read.
        OpAtlasError: a file cannot be written.
    """
    lines = ((record.run_id, journal.line(record.to_json())) for record in records)
    for run_id, of_run in grouped(lines).items():
        first = journal.line(asdict(replace(header, run_id=run_id)))
        _add_lines(file_path(database, run_id), of_run, first)


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
        path = file_path(source, run_id)
        with noted(problems, DamagedLog):
            contents = read(source, run_id)
            problems += [f"{path}:{line}: {problem}" for line, problem in contents.unreadable]
            records = [record for record in contents.records if record.run_id == run_id]
            if len(records) < len(contents.records):
                problems.append(f"{path}: records of another run do not count")
            add(target, contents.header, records)
    for run_id, of_run in grouped(events(source, problems)).items():
        add_events(target, run_id, of_run)


def read(database: Database, run_id: str) -> JournalContents:
    """Reads the records of a run, in the order of measurement within each process.

    Raises:
        OpAtlasError: the run id cannot name a file.
        DamagedLog: the file cannot be read.
    """
    path = file_path(database, run_id)
    return journal.parse(read_lines(path), path)


def records(database: Database, problems: list[str]) -> Iterator[Record]:
    """Yields the records of all runs; `problems` receives a sentence for each log that cannot be read."""
    for run_id in runs(database):
        with noted(problems):
            yield from read(database, run_id).records


def with_same_rows(database: Database, new: Sequence[Record]) -> list[Record]:
    """Returns new records, after those that the log has of the same rows in the same runs, of other processes.

    A log that cannot be read has none.
    """
    rows, there = {row for record in new for row in record.rows}, list[Record]()
    for run_id in sorted(set(runs(database)).intersection(record.run_id for record in new)):
        with suppress(DamagedLog):
            there += read(database, run_id).records
    return [*(record for record in there if not rows.isdisjoint(record.rows)), *new]


def events(database: Database, problems: list[str], run_id: str = "") -> Iterator[tuple[str, Event]]:
    """Yields the events, each with the run whose log has it.

    Args:
        problems: receives a sentence for each file that cannot be read.
        run_id: the events of this run only; "" for all.
    """
    any_event: Any = Event
    for path in sorted(database.runs_dir.glob(f"{run_id or '[!.]*'}{_EVENTS}")):
        with noted(problems):
            for number, line in enumerate(read_lines(path), start=1):
                yield path.name.removesuffix(_EVENTS), decode(line, any_event, f"{path}:{number}")


def imported(database: Database, problems: list[str], why: Why = "replaced") -> Iterator[Imported]:
    """Yields the rows that folds replaced and no record has, or those that were edited."""
    for _, event in events(database, problems):
        if isinstance(event, Imported) and event.why == why:
            yield event


def run_order(database: Database, manifests: Mapping[str, Manifest] | None = None) -> RunOrder:
    """Returns the order of the runs of a database.

    Args:
        manifests: the manifests of its runs, and of others; None: they are read.
    """
    # Run ids have the second of a start, manifests its fraction.
    known = read_manifests(database, []) if manifests is None else manifests
    return RunOrder({run: each.started_at for run, each in known.items()})


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
    """Yields the lines of the log of a run, or of the samples of an ingest, with line ends. Raises DamagedLog."""
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
                if number == 1 and path.name.endswith(_SUFFIX) and not path.name.startswith(INGEST_PREFIX):
                    journal.parse([line], path)
                elif not line:
                    return
                yield line
    except BROKEN_GZIP as error:
        raise DamagedLog(f"{path}: not a log of OpAtlas ({error}): {_REMEDY}") from None
    except journal.NotAJournal as error:
        raise DamagedLog(str(error)) from None
    except OSError as error:
        raise DamagedLog(f"{path}: cannot be read ({error.strerror}): make it readable") from None


class Log:
    """Looks up rows in the log of a database: in which runs they were measured, when, with which samples.

    The file of a run is read when it is first needed. A file that cannot be read counts as empty.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._loaded: dict[str, dict[RowName, list[LoggedRow]]] = {}
        self._types: dict[str, set[str]] = {}
        self._imported: set[tuple[str, RowName, str]] | None = None
        self._run_ids: Sequence[str] | None = None

    def explains(self, run_id: str, row: RowName, duration: str) -> bool:
        """Returns whether a run has samples of a row with a stored duration, which is a cell of the row."""
        return any(each.has_duration(duration) for each in self.of_row(run_id, row))

    def has_imported(self, run_id: str, row: RowName, duration: str) -> bool:
        """Returns whether the log keeps a duration that a fold replaced, of a row that names a run."""
        if self._imported is None:
            self._imported = {
                (each.row.get(RUN_ID, ""), RowName(each.kernel_type, signature(each.kernel_type, each.row)), cell)
                for each in imported(self.database, [])
                if (cell := each.row.get(row_kind(each.kernel_type).duration_columns[0], ""))
            }
        return (run_id, row, duration) in self._imported

    def is_last(self, run_id: str, row: RowName, duration: str) -> bool:
        """Returns whether a stored duration is that of the record of a row in a run that counts."""
        measured = [each for each in self._counting(run_id, row) if each.samples_us]
        return any(each.has_duration(duration) for each in measured[-1:])

    def has_type(self, run_id: str, kernel_type: str) -> bool:
        """Returns whether a run has records of a kernel type, measured or not."""
        if run_id not in self._types:
            self._types[run_id] = {row.kernel_type for row in self._run(run_id)}
        return kernel_type in self._types[run_id]

    def statuses(self, row: RowName) -> Mapping[str, Status]:
        """Returns the last status of a row in each run; skipped only if the run did nothing else with the row."""
        if self._run_ids is None:
            self._run_ids = runs(self.database)
        found = {}
        for run_id in self._run_ids:
            if statuses := [each.status for each in self._counting(run_id, row)]:
                found[run_id] = next((each for each in reversed(statuses) if each is not Status.SKIPPED), statuses[-1])
        return found

    def _counting(self, run_id: str, row: RowName) -> Sequence[LoggedRow]:
        """Returns the records of a row in a run; those of other rows that launched it only if there are no others."""
        found = self.of_row(run_id, row)
        return [each for each in found if each.is_requested] or found

    def of_row(self, run_id: str, row: RowName) -> Sequence[LoggedRow]:
        """Returns the records of a row in a run, in the order of time."""
        return self._run(run_id).get(row, ())

    def _run(self, run_id: str) -> Mapping[RowName, list[LoggedRow]]:
        found = self._loaded.get(run_id)
        if found is None:
            found = self._loaded[run_id] = {}
            with suppress(OpAtlasError), gc_paused():
                for record in read(self.database, run_id).records:
                    requested = record.requested_record()
                    for each in filter(None, (requested, record.launched_record())):
                        samples_us = None if each.measurement is None else each.measurement.samples_us
                        name = RowName(intern(each.kernel_type), each.signature)
                        row = LoggedRow(each.status, each.finished_at, samples_us, each is requested)
                        found.setdefault(name, []).append(row)
            for of_row in found.values():
                of_row.sort(key=lambda each: each.finished_at)
        return found


class LoggedRow(NamedTuple):
    """What a record says of a row.

    Attributes:
        samples_us: None if it did not measure.
        is_requested: whether the row was requested, whatever was launched.
    """

    status: Status
    finished_at: float
    samples_us: tuple[float, ...] | None
    is_requested: bool

    def has_duration(self, cell: str) -> bool:
        """Returns whether a stored duration follows from the samples."""
        samples_us, rules = self.samples_us, (typical_mean, median)
        return samples_us is not None and any(microseconds(rule(samples_us)) == cell.strip() for rule in rules)
