"""The history of a database: every record that was written to its CSVs, in `runs/{run id}.jsonl.gz`.

A history file has the lines of a run's journals, compressed: a header, then a record per line. It keeps samples,
assumptions, counters and checked elements, which no column holds.

A row is edited if the history of its Run ID has no row with its cells: somebody changed shapes, dtypes or lengths after
the run, so the row's duration and status belong to another case.
"""

from __future__ import annotations

import gzip
import itertools
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from opatlas.data import journal
from opatlas.data.cells import duration_columns, is_measured_column
from opatlas.data.csv_files import read_frame, write_bytes, write_frame
from opatlas.data.database import Database
from opatlas.data.journal import JournalContents, JournalHeader
from opatlas.data.manifest import INGEST_PREFIX
from opatlas.errors import OpAtlasError, TableError
from opatlas.files import open_safely
from opatlas.row.columns import POOLED, RUN_ID
from opatlas.row.quality import valid_duration
from opatlas.row.record import Record, RowName, is_run_id
from opatlas.row.signature import column_cells, signature, signatures
from opatlas.row.table import RowTable
from opatlas.typed_json import decode

if TYPE_CHECKING:
    import pandas as pd

_SUFFIX = ".jsonl.gz"
_REMEDY = "move it away, or restore it"
REPLACED_SUFFIX = ".replaced"
_EDITED_SUFFIX = ".edited"
#: Contents of more bytes than this, and than so many times the packed file, are refused: a small file cannot fill the
#: memory. Packed records take a tenth to a fifth of their size.
_MOST_BYTES, _MOST_TIMES = 256 << 20, 50
_MOST_LINES = 1 << 20
#: The compression level: half the time of level 6, and a tenth more space.
_LEVEL = 4


class DamagedHistory(OpAtlasError):
    """A history that cannot be read. Its rows do not count as edited."""


def file_path(database: Database, run_id: str) -> Path:
    """Returns the path of a run's history. Raises OpAtlasError if the run id cannot name a file."""
    return database.runs_dir / f"{_file_stem(run_id)}{_SUFFIX}"


def save_replaced(database: Database, run_id: str, kernel_type: str, rows: pd.DataFrame) -> None:
    """Saves rows whose durations a run is about to replace and no history has. Equal rows are saved once.

    Raises:
        OpAtlasError: the run id or the kernel type cannot name a file, or the file cannot be read or written.
    """
    _save(database, f"{_file_stem(run_id)}{REPLACED_SUFFIX}", kernel_type, rows)


def save_edited(database: Database, run_id: str, kernel_type: str, rows: pd.DataFrame) -> None:
    """Saves edited rows, apart from replaced ones. Raises as `save_replaced`."""
    _save(database, f"{_file_stem(run_id)}{_EDITED_SUFFIX}", kernel_type, rows)


def _save(database: Database, folder: str, kernel_type: str, rows: pd.DataFrame) -> None:
    import pandas as pd

    path = database.runs_dir / folder / database.csv_path(kernel_type).name
    there = [read_frame(path, kernel_type)] if path.exists() else []
    kept = pd.concat([*there, rows], ignore_index=True).fillna("").drop_duplicates()
    write_frame(kept, path)


def replaced_tables(database: Database) -> list[Path]:
    """Returns the CSVs of `save_replaced`, sorted."""
    return sorted(database.runs_dir.glob(f"[!.]*{REPLACED_SUFFIX}/[!.]*.csv"))


def runs(database: Database) -> list[str]:
    """Returns the run ids that have a history, sorted."""
    stems = (path.name.removesuffix(_SUFFIX) for path in database.runs_dir.glob(f"[!.]*{_SUFFIX}"))
    # The samples of ingests have another format (opatlas/capture/manifest.py).
    return sorted(stem for stem in stems if not stem.startswith(INGEST_PREFIX))


def add(database: Database, header: JournalHeader, records: Sequence[Record]) -> None:
    """Adds records to the histories of their runs, without duplicates. Each file is replaced in one step.

    Args:
        header: the header of the journal with the records.

    Raises:
        DamagedHistory: a file is there that cannot be read.
        OpAtlasError: a file cannot be written.
    """
    of_run: dict[str, list[Record]] = {}
    for record in records:
        of_run.setdefault(record.run_id, []).append(record)
    for run_id, of_this in of_run.items():
        path = file_path(database, run_id)
        first = replace(header, run_id=run_id, version=journal.VERSION)
        there = list(_lines(path)) if path.exists() else [journal.line(asdict(first))]
        lines = dict.fromkeys([*there, *(journal.line(record.to_json()) for record in of_this)])
        if len(lines) > len(there):
            write_bytes(path, gzip.compress(b"".join(lines), _LEVEL, mtime=0))


def read(database: Database, run_id: str) -> JournalContents:
    """Reads the records of a run, in the order of measurement within each process.

    Raises:
        OpAtlasError: the run id cannot name a file.
        DamagedHistory: the file cannot be read.
    """
    path = file_path(database, run_id)
    return journal.parse(_lines(path), path)


def all_records(database: Database, problems: list[str]) -> Iterator[Record]:
    """Yields the records of all runs; after the record of a row, the record of the kernel launched in its place.

    Args:
        problems: receives a sentence for each history that cannot be read.
    """
    for run_id in runs(database):
        try:
            records = read(database, run_id).records
        except OpAtlasError as error:
            problems.append(str(error))
            continue
        for record in records:
            yield record
            if (launched := record.launched_record()) is not None:
                yield launched


class Histories:
    """Looks up rows in the histories of a database. A history is read when it is first needed.

    A history that cannot be read counts as empty.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lines: dict[str, Sequence[_RecordFields]] = {}
        self._measured: dict[str, frozenset[RowName]] = {}
        self._types: dict[str, dict[str, set[str]]] = {}

    def has_duration(self, run_id: str, row: RowName) -> bool:
        """Returns whether the history of a run has a duration of a row."""
        if run_id not in self._measured:
            measured = (line for line in self._run_lines(run_id) if line.measurement is not None)
            self._measured[run_id] = frozenset(row for line in measured for row in line.rows())
        return row in self._measured[run_id]

    def has_type(self, run_id: str, kernel_type: str) -> bool:
        """Returns whether the history of a run has records of a kernel type, measured or not."""
        return kernel_type in self._run_signatures(run_id)

    def has_row(self, run_id: str, row: RowName) -> bool:
        """Returns whether the history of a run has a record of a row, measured or not."""
        return row.signature in self._run_signatures(run_id).get(row.kernel_type, ())

    def _run_signatures(self, run_id: str) -> Mapping[str, set[str]]:
        if run_id not in self._types:
            types = self._types[run_id] = {}
            for row in (row for line in self._run_lines(run_id) for row in line.rows()):
                types.setdefault(row.kernel_type, set()).add(row.signature)
        return self._types[run_id]

    def _run_lines(self, run_id: str) -> Sequence[_RecordFields]:
        if run_id not in self._lines:
            try:
                self._lines[run_id] = list(_read_lines(file_path(self._database, run_id)))
            except OpAtlasError:
                self._lines[run_id] = ()
        return self._lines[run_id]


@dataclass(frozen=True)
class _LaunchedFields:
    kernel_type: str
    cells: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _MeasurementFields:
    ran_as: _LaunchedFields | None = None


@dataclass(frozen=True)
class _RecordFields:
    """The fields of a record that name its rows; decoding only these is several times faster."""

    kernel_type: str
    cells: Mapping[str, str]
    measurement: _MeasurementFields | None = None

    def rows(self) -> Iterator[RowName]:
        """Yields the requested row, and the launched row if it differs.  Signatures are computed from the cells."""
        yield RowName(self.kernel_type, signature(self.kernel_type, self.cells))
        ran_as = self.measurement.ran_as if self.measurement is not None else None
        if ran_as is not None:
            yield RowName(ran_as.kernel_type, signature(ran_as.kernel_type, ran_as.cells or self.cells))


def _read_lines(path: Path) -> Iterator[_RecordFields]:
    """Yields the records of a history, reduced to `_RecordFields`. Raises OpAtlasError."""
    if path.exists():
        seen = set[bytes]()
        for number, line in enumerate(_lines(path), start=1):
            if number > 1 and line not in seen:
                seen.add(line)
                yield decode(line, _RecordFields, f"{path}:{number}")


def _lines(path: Path) -> Iterator[bytes]:
    """Yields the lines of a history, with line ends. Raises DamagedHistory."""
    try:
        with open_safely(path) as packed, gzip.open(packed) as file:
            most = left = max(_MOST_BYTES, _MOST_TIMES * os.fstat(packed.fileno()).st_size)
            for number in itertools.count(1):
                # No longer line than the limit is read.
                line = file.readline(left + 1)
                left -= len(line)
                if left < 0 or number > _MOST_LINES:
                    limit = f"{most:,} bytes" if left < 0 else f"{_MOST_LINES:,} lines"
                    raise DamagedHistory(f"{path}: a history of more than {limit}, which is too large: {_REMEDY}")
                if number == 1:
                    journal.parse([line], path)
                elif not line:
                    return
                # Another program may have removed the last line end.
                yield line if line.endswith(b"\n") else line + b"\n"
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DamagedHistory(f"{path}: not a history of OpAtlas ({error}): {_REMEDY}") from None
    except journal.NotAJournal as error:
        raise DamagedHistory(str(error)) from None
    except OSError as error:
        raise DamagedHistory(f"{path}: cannot be read ({error.strerror}): make it readable") from None


def _file_stem(run_id: str) -> str:
    if not is_run_id(run_id):
        raise OpAtlasError(f"the run id {run_id!r} cannot name a file: use letters, digits and . _ + - only")
    return run_id


@dataclass(frozen=True)
class EditedRows:
    """Edited rows.

    Attributes:
        positions: the positions of the rows, from 0, by kernel type.
        example: one of the rows; None if there are none.
        problems: files that could not be written; their rows are unchanged.
    """

    positions: dict[str, list[int]] = field(default_factory=dict)
    example: RowName | None = None
    problems: list[str] = field(default_factory=list)

    @property
    def count(self) -> int:
        return sum(map(len, self.positions.values()))


class EditedLookup:
    """Finds the edited rows of tables. False if the database has no complete history."""

    def __init__(self, database: Database) -> None:
        self._runs = _complete_histories(database)
        self._histories = Histories(database)

    def __bool__(self) -> bool:
        return bool(self._runs)

    def in_table(self, kernel_type: str, frame: pd.DataFrame) -> dict[int, str]:
        """Returns the signatures of the edited rows of a table, by position from 0."""
        if RUN_ID not in frame.columns:
            return {}
        run_ids = frame[RUN_ID].tolist()
        known = {run for run in self._runs.intersection(run_ids) if self._histories.has_type(run, kernel_type)}
        if not known:
            return {}
        return {
            position: signature
            for position, (run, signature) in enumerate(zip(run_ids, signatures(kernel_type, frame), strict=True))
            if run in known and not self._histories.has_row(run, RowName(kernel_type, signature))
        }


def edited_rows(database: Database) -> EditedRows:
    """Finds the edited rows of a database; writes nothing. Files that cannot be read are skipped."""
    return _each_edited(database, None)


def clear_edited(database: Database, run_id: str) -> EditedRows:
    """Clears the measured cells of edited rows, after saving the rows in the folder of the run `run_id`.

    Raises:
        OpAtlasError: the database cannot be locked.
    """
    if not runs(database):
        return EditedRows()
    with database.lock():
        return _each_edited(database, run_id)


def without_measurement(kernel_type: str, frame: pd.DataFrame, positions: Sequence[int]) -> pd.DataFrame:
    """Returns a table with the measured cells of some rows cleared."""
    return _without(frame, positions, [name for name in frame.columns if is_measured_column(kernel_type, name)])


def _without(frame: pd.DataFrame, positions: Sequence[int], columns: Sequence[str]) -> pd.DataFrame:
    cleared = {}
    for name in columns:
        cells = frame[name].tolist()
        for position in positions:
            cells[position] = ""
        cleared[name] = cells
    result: pd.DataFrame = frame.assign(**cleared)
    return result


def _each_edited(database: Database, run_id: str | None) -> EditedRows:
    """Finds edited rows, and clears them for the run `run_id`; None leaves them unchanged."""
    found = EditedRows()
    example = None
    lookup = EditedLookup(database)
    if not lookup:
        return found
    for kernel_type in database.kernel_types_and_messages():
        try:
            table = database.read(kernel_type)
        except TableError:
            continue
        edited = lookup.in_table(kernel_type, table.frame)
        if not edited:
            continue
        try:
            if run_id is not None:
                _clear(database, table, list(edited), run_id)
        except OpAtlasError as error:
            found.problems.append(str(error))
            continue
        found.positions[kernel_type] = list(edited)
        example = example or RowName(kernel_type, next(iter(edited.values())))
    return EditedRows(found.positions, example, found.problems)


def _complete_histories(database: Database) -> set[str]:
    """Returns the runs with a complete history. A remaining journal of a run may have records of any row."""
    with_journal = {path.name.partition(".jsonl")[0] for path in database.journal_dir.glob("*.jsonl*")}
    all_runs = runs(database)
    # With several devices the name of a journal has a suffix after the run id.
    return {run for run in all_runs if not any(name == run or name.startswith(f"{run}-") for name in with_journal)}


def _clear(database: Database, table: RowTable, edited: Sequence[int], run_id: str) -> None:
    kernel_type, frame = table.kernel_type, table.frame
    own_duration = duration_columns(kernel_type)[0]
    durations = column_cells(frame, own_duration)
    held = [position for position in edited if valid_duration(durations[position]) is not None]
    if held:
        save_edited(database, run_id, kernel_type, frame.iloc[held])
    pooled = [name for name in POOLED if name in frame.columns]
    cleared = _without(without_measurement(kernel_type, frame, edited), edited, pooled)
    database.write(RowTable(kernel_type, table.path, cleared))
