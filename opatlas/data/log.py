"""The log of a database: what each run measured, in `runs/{run id}.jsonl.gz`.

The file of a run has the lines of its journals, compressed: a header, then a record per line. It keeps samples,
assumptions, counters and checked elements, which no column holds. Further lines keep what a fold replaced and no record
has (`Imported`), which runs were pooled (`Pooled`), and which runs had a clock that was ahead (`ClocksAhead`).
"""

from __future__ import annotations

import gzip
import itertools
import os
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, median
from typing import Literal

from opatlas.data import journal
from opatlas.data.cells import microseconds
from opatlas.data.csv_files import read_frame, write_bytes
from opatlas.data.database import Database
from opatlas.data.journal import JournalContents, JournalHeader
from opatlas.data.manifest import INGEST_PREFIX, KNOWN_TIME, Manifest, RunOrder, read_manifests
from opatlas.errors import OpAtlasError
from opatlas.files import open_safely
from opatlas.row.columns import RUN_ID, Status
from opatlas.row.quality import typical_mean
from opatlas.row.record import Record, RowName, is_run_id
from opatlas.row.row_kind import row_kind
from opatlas.row.signature import row_cells, signature
from opatlas.typed_json import decode, json_line

_SUFFIX = ".jsonl.gz"
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


class DamagedLog(OpAtlasError):
    """The log of a run that cannot be read. Its rows do not count as edited."""


@dataclass(frozen=True)
class Imported:
    """A row with a duration that no record has, as it was before a fold changed it.

    Attributes:
        row: its cells, without empty ones; Run ID is the run that the row named.
        why: "replaced" by another duration, or "edited": its shapes, dtypes or lengths were changed after its run.
    """

    kernel_type: str
    row: Mapping[str, str]
    why: Literal["replaced", "edited"] = "replaced"
    kind: Literal["imported"] = "imported"


@dataclass(frozen=True)
class Pooled:
    """The runs whose durations `combine --pool` pooled: all that the log had then."""

    runs: tuple[str, ...]
    kind: Literal["pooled"] = "pooled"


@dataclass(frozen=True)
class ClocksAhead:
    """Runs whose start was in the future when they came into the database: their place in the order is unknown."""

    runs: tuple[str, ...]
    kind: Literal["clocks-ahead"] = "clocks-ahead"


Event = Imported | Pooled | ClocksAhead
_EVENTS: Mapping[bytes, type[Imported] | type[Pooled] | type[ClocksAhead]] = {
    b'{"kind":"imported"': Imported,
    b'{"kind":"pooled"': Pooled,
    b'{"kind":"clocks-ahead"': ClocksAhead,
}


def file_path(database: Database, run_id: str) -> Path:
    """Returns the path of a run's log. Raises OpAtlasError if the run id cannot name a file."""
    if not is_run_id(run_id):
        raise OpAtlasError(f"the run id {run_id!r} cannot name a file: use letters, digits and . _ + - only")
    return database.runs_dir / f"{run_id}{_SUFFIX}"


def runs(database: Database) -> list[str]:
    """Returns the run ids that have a log, sorted."""
    stems = (path.name.removesuffix(_SUFFIX) for path in database.runs_dir.glob(f"[!.]*{_SUFFIX}"))
    # The samples of ingests have another format (opatlas/capture/manifest.py).
    return sorted(stem for stem in stems if stem != COMBINE and not stem.startswith(INGEST_PREFIX))


def add(database: Database, header: JournalHeader, records: Sequence[Record]) -> None:
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
        _add_lines(database, replace(header, run_id=run_id, version=journal.VERSION), lines)


def add_events(database: Database, run_id: str, events: Iterable[Event]) -> None:
    """Adds events to the log of a run, without duplicates. Raises as `add`."""
    lines = [_event_line(event) for event in events]
    if lines:
        _add_lines(database, JournalHeader(run_id, "missing-only", prune=False), lines)


def _event_line(event: Event) -> bytes:
    values = asdict(event)
    return f"{json_line({'kind': values.pop('kind'), **values})}\n".encode()


def _add_lines(database: Database, header: JournalHeader, new: Sequence[bytes]) -> None:
    path = file_path(database, header.run_id)
    there = list(_lines(path)) if path.exists() else [journal.line(asdict(header))]
    lines = dict.fromkeys([*there, *new])
    if len(lines) > len(there):
        write_bytes(path, gzip.compress(b"".join(lines), _LEVEL, mtime=0))


def read(database: Database, run_id: str) -> JournalContents:
    """Reads the records of a run, in the order of measurement within each process.

    Raises:
        OpAtlasError: the run id cannot name a file.
        DamagedLog: the file cannot be read.
    """
    path = file_path(database, run_id)
    return journal.parse((line for line in _lines(path) if _event_type(line) is None), path)


def all_records(database: Database, problems: list[str], of_runs: Container[str] | None = None) -> Iterator[Record]:
    """Yields the records of runs; after the record of a row, the record of the kernel launched in its place.

    Args:
        problems: receives a sentence for each log that cannot be read.
        of_runs: these runs only; None: all.
    """
    for run_id in runs(database):
        if of_runs is not None and run_id not in of_runs:
            continue
        try:
            records = read(database, run_id).records
        except OpAtlasError as error:
            problems.append(str(error))
            continue
        for record in records:
            yield record
            if (launched := record.launched_record()) is not None:
                yield launched


def events(database: Database, problems: list[str]) -> Iterator[tuple[str, Event]]:
    """Yields the events of all runs, with the run. `problems` is as for `all_records`."""
    for run_id in (*runs(database), COMBINE):
        path = file_path(database, run_id)
        try:
            for number, line in enumerate(_lines(path) if path.exists() else (), start=1):
                if (kind := _event_type(line)) is not None:
                    yield run_id, decode(line, kind, f"{path}:{number}")
        except OpAtlasError as error:
            # `all_records` may have said so.
            problems += [str(error)] if str(error) not in problems else []


def imported(
    database: Database, problems: list[str], why: Literal["replaced", "edited"] = "replaced"
) -> Iterator[Imported]:
    """Yields the rows that folds replaced and no record has, or those that were edited."""
    for _, event in events(database, problems):
        if isinstance(event, Imported) and event.why == why:
            yield event
    # Earlier versions kept these rows in tables.
    for path in sorted(database.runs_dir.glob(f"[!.]*.{why}/[!.]*.csv")):
        try:
            frame = read_frame(path)
        except OpAtlasError as error:
            problems.append(str(error))
            continue
        for cells in row_cells(frame):
            yield Imported(path.stem, {name: cell for name, cell in cells.items() if cell}, why)


def run_order(database: Database, manifests: Mapping[str, Manifest] | None = None) -> RunOrder:
    """Returns the order of the runs of a database.

    Args:
        manifests: the manifests of its runs, and of others; None: they are read.
    """
    # Run ids have the second of a start, manifests its fraction.
    known = read_manifests(database, []) if manifests is None else manifests
    ahead = {run for _, event in events(database, []) if isinstance(event, ClocksAhead) for run in event.runs}
    return RunOrder({run: each.started_at for run, each in known.items()}, ahead)


def start_of_run(database: Database, run_id: str, now: float) -> float:
    """Returns the start of a run that begins now, in seconds since the epoch.

    It is after the starts of all runs of the database, also if the clock was set back: a new run is the newest.
    """
    order = run_order(database)
    others = (order.age(run) for run in read_manifests(database, []) if run != run_id)
    starts = [started_at for known, started_at, _ in others if known == KNOWN_TIME]
    return max([now, *(started_at + _STEP_S for started_at in starts)])


def _event_type(line: bytes) -> type[Imported] | type[Pooled] | type[ClocksAhead] | None:
    return next((kind for start, kind in _EVENTS.items() if line.startswith(start)), None)


class Log:
    """Looks up rows in the log of a database. The file of a run is read when it is first needed.

    A file that cannot be read counts as empty.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self._lines: dict[str, Sequence[_RecordFields]] = {}
        self._samples: dict[str, dict[RowName, list[tuple[float, ...]]]] = {}
        self._types: dict[str, dict[str, set[str]]] = {}
        self._imported: set[tuple[str, RowName, str]] | None = None
        self._statuses: dict[RowName, dict[str, Status]] | None = None

    def explains(self, run_id: str, row: RowName, duration: str) -> bool:
        """Returns whether a run has samples of a row with a stored duration, which is a cell of the row."""
        return any(_has_duration(samples, duration) for samples in self._samples_of(run_id, row))

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
        """Returns whether a stored duration is that of the last record of a row in a run."""
        return any(_has_duration(samples, duration) for samples in self._samples_of(run_id, row)[-1:])

    def has_duration(self, run_id: str, row: RowName) -> bool:
        """Returns whether a run has samples of a row."""
        return bool(self._samples_of(run_id, row))

    def _samples_of(self, run_id: str, row: RowName) -> Sequence[tuple[float, ...]]:
        """Returns the samples of each record of a row in a run, in the order of time."""
        if run_id not in self._samples:
            found = self._samples[run_id] = {}
            for line in sorted(self._run_lines(run_id), key=lambda line: line.finished_at):
                if line.measurement is not None:
                    for name in line.rows():
                        found.setdefault(name, []).append(line.measurement.samples_us)
        return self._samples[run_id].get(row, ())

    def has_type(self, run_id: str, kernel_type: str) -> bool:
        """Returns whether a run has records of a kernel type, measured or not."""
        return kernel_type in self._run_signatures(run_id)

    def has_row(self, run_id: str, row: RowName) -> bool:
        """Returns whether a run has a record of a row, measured or not."""
        return row.signature in self._run_signatures(run_id).get(row.kernel_type, ())

    def statuses(self, row: RowName) -> Mapping[str, Status]:
        """Returns the status of a row in each run."""
        if self._statuses is None:
            self._statuses = {}
            for run_id in runs(self.database):
                for line in self._run_lines(run_id):
                    for name in line.rows():
                        self._statuses.setdefault(name, {})[run_id] = line.status
        return self._statuses.get(row, {})

    def _run_signatures(self, run_id: str) -> Mapping[str, set[str]]:
        if run_id not in self._types:
            types = self._types[run_id] = {}
            for row in (row for line in self._run_lines(run_id) for row in line.rows()):
                types.setdefault(row.kernel_type, set()).add(row.signature)
        return self._types[run_id]

    def _run_lines(self, run_id: str) -> Sequence[_RecordFields]:
        if run_id not in self._lines:
            try:
                self._lines[run_id] = list(_read_lines(file_path(self.database, run_id)))
            except OpAtlasError:
                self._lines[run_id] = ()
        return self._lines[run_id]


def _has_duration(samples_us: Sequence[float], cell: str) -> bool:
    """Returns whether a stored duration follows from samples; earlier versions stored the mean of all of them."""
    return any(microseconds(float(rule(samples_us))) == cell.strip() for rule in (fmean, typical_mean, median))


@dataclass(frozen=True)
class _LaunchedFields:
    kernel_type: str
    cells: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _MeasurementFields:
    samples_us: tuple[float, ...]
    ran_as: _LaunchedFields | None = None


@dataclass(frozen=True)
class _RecordFields:
    """The fields of a record that name its rows, and its samples; decoding only these is faster."""

    kernel_type: str
    cells: Mapping[str, str]
    status: Status
    finished_at: float
    measurement: _MeasurementFields | None = None

    def rows(self) -> Iterator[RowName]:
        """Yields the requested row, and the launched row if it differs.  Signatures are computed from the cells."""
        yield RowName(self.kernel_type, signature(self.kernel_type, self.cells))
        ran_as = self.measurement.ran_as if self.measurement is not None else None
        if ran_as is not None:
            yield RowName(ran_as.kernel_type, signature(ran_as.kernel_type, ran_as.cells or self.cells))


def _read_lines(path: Path) -> Iterator[_RecordFields]:
    """Yields the records of a log, reduced to `_RecordFields`. Raises OpAtlasError."""
    if path.exists():
        seen = set[bytes]()
        for number, line in enumerate(_lines(path), start=1):
            if number > 1 and line not in seen and _event_type(line) is None:
                seen.add(line)
                yield decode(line, _RecordFields, f"{path}:{number}")


def _lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a log, with line ends. Raises DamagedLog."""
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
                if number == 1:
                    journal.parse([line], path)
                elif not line:
                    return
                # Another program may have removed the last line end.
                yield line if line.endswith(b"\n") else line + b"\n"
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedLog(f"{path}: not a log of OpAtlas ({error}): {_REMEDY}") from None
    except journal.NotAJournal as error:
        raise DamagedLog(str(error)) from None
    except OSError as error:
        raise DamagedLog(f"{path}: cannot be read ({error.strerror}): make it readable") from None
