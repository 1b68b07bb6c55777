"""The history of a database: each record that was merged into its CSVs, in `runs/{run id}.jsonl.gz`.

A history file holds the lines of a run's journals, compressed: a header, then one record a line. It
has the samples, assumptions, counters and checked elements that no column of a CSV has.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import pandas as pd

from opatlas.errors import OpAtlasError
from opatlas.files import open_own
from opatlas.model.record import Record, RowName, is_run_id
from opatlas.model.signature import signature
from opatlas.store import journal
from opatlas.store.csv_files import (
    Database,
    read_frame,
    write_bytes,
    write_frame,
)
from opatlas.store.journal import Contents, Header
from opatlas.store.manifest import INGEST_PREFIX
from opatlas.typed_json import decode

_SUFFIX = ".jsonl.gz"
REPLACED_SUFFIX = ".replaced"
_EDITED_SUFFIX = ".edited"
#: A file that a small one expands to must not take all memory.
_MOST_BYTES = 4 << 30
_PIECE_BYTES = 1 << 20
#: Level 4 takes half the time of level 6 and a tenth more room.
_LEVEL = 4


def path_of(database: Database, run_id: str) -> Path:
    """The history file of a run, whether or not it exists. Raises OpAtlasError if the run id cannot name a file."""
    return database.runs_dir / f"{_file_stem(run_id)}{_SUFFIX}"


def keep_replaced(database: Database, run_id: str, kernel_type: str, rows: pd.DataFrame) -> None:
    """Keeps whole rows whose durations a run is about to replace and no history has; a row once.

    Raises:
        OpAtlasError: the run id or the kernel type cannot name a file; the file cannot be written, or the one that
            is there cannot be read.
    """
    _keep(database, f"{_file_stem(run_id)}{REPLACED_SUFFIX}", kernel_type, rows)


def keep_edited(database: Database, run_id: str, kernel_type: str, rows: pd.DataFrame) -> None:
    """Keeps whole rows whose durations are of other shapes than the rows have; raises as `keep_replaced` does.

    They lie apart from replaced rows: their durations must not be taken for those of their shapes.
    """
    _keep(database, f"{_file_stem(run_id)}{_EDITED_SUFFIX}", kernel_type, rows)


def _keep(database: Database, folder: str, kernel_type: str, rows: pd.DataFrame) -> None:
    path = database.runs_dir / folder / database.csv_path(kernel_type).name
    there = [read_frame(path, kernel_type)] if path.exists() else []
    kept = pd.concat([*there, rows], ignore_index=True).fillna("").drop_duplicates()
    write_frame(kept, path)


def replaced_tables(database: Database) -> list[Path]:
    """The CSVs that `keep_replaced` wrote, sorted."""
    return sorted(database.runs_dir.glob(f"[!.]*{REPLACED_SUFFIX}/[!.]*.csv"))


def runs(database: Database) -> list[str]:
    """The run ids that have a history, sorted."""
    stems = (path.name.removesuffix(_SUFFIX) for path in database.runs_dir.glob(f"[!.]*{_SUFFIX}"))
    # The samples of ingests are another format (opatlas/capture/manifest.py).
    return sorted(stem for stem in stems if not stem.startswith(INGEST_PREFIX))


def add(database: Database, header: Header, records: Sequence[Record]) -> None:
    """Adds records to the histories of their runs; a record that is there already is not added again.

    A file is replaced in one step, and equal records give equal bytes.

    Args:
        header: of the journal that holds the records.

    Raises:
        OpAtlasError: a file cannot be written, or what stands under its name is not a history.
    """
    of_run: dict[str, list[Record]] = {}
    for record in records:
        of_run.setdefault(record.run_id, []).append(record)
    for run_id, of_this in of_run.items():
        path = path_of(database, run_id)
        first = replace(header, run_id=run_id, version=journal.VERSION)
        there = _lines(path) if path.exists() else [journal.line(asdict(first))]
        lines = dict.fromkeys([*there, *(journal.line(record.to_json()) for record in of_this)])
        if len(lines) > len(there):
            write_bytes(path, gzip.compress(b"".join(lines), _LEVEL, mtime=0))


def read(database: Database, run_id: str) -> Contents:
    """The records of a run, in the order in which they were measured by each process.

    Raises:
        OpAtlasError: the file cannot be read, or is not a history.
    """
    path = path_of(database, run_id)
    return journal.parse(b"".join(_lines(path)), path)


class Histories:
    """The histories of a database, to look up which rows they tell of. The file of a run is read when first asked for.

    A history that cannot be read tells of nothing.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lines: dict[str, Sequence[_Line]] = {}
        self._measured: dict[str, frozenset[RowName]] = {}
        self._types: dict[str, dict[str, set[str]]] = {}

    def have(self, run_id: str, row: RowName) -> bool:
        """Whether the history of a run has a duration of a row."""
        if run_id not in self._measured:
            measured = (line for line in self._of_run(run_id) if line.measurement is not None)
            self._measured[run_id] = frozenset(row for line in measured for row in line.rows())
        return row in self._measured[run_id]

    def tell_of_type(self, run_id: str, kernel_type: str) -> bool:
        """Whether the history of a run tells of rows of a kernel type, measured or not."""
        return kernel_type in self._types_of(run_id)

    def tell_of(self, run_id: str, row: RowName) -> bool:
        """Whether the history of a run tells of a row, measured or not."""
        return row.signature in self._types_of(run_id).get(row.kernel_type, ())

    def _types_of(self, run_id: str) -> Mapping[str, set[str]]:
        if run_id not in self._types:
            types = self._types[run_id] = {}
            for row in (row for line in self._of_run(run_id) for row in line.rows()):
                types.setdefault(row.kernel_type, set()).add(row.signature)
        return self._types[run_id]

    def _of_run(self, run_id: str) -> Sequence[_Line]:
        if run_id not in self._lines:
            try:
                self._lines[run_id] = list(_lines_of(path_of(self._database, run_id)))
            except OpAtlasError:
                self._lines[run_id] = ()
        return self._lines[run_id]


@dataclass(frozen=True)
class _Ran:
    kernel_type: str
    cells: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class _Measured:
    ran_as: _Ran | None = None


@dataclass(frozen=True)
class _Line:
    """What tells which rows a record measured; to decode no more than that is several times faster."""

    kernel_type: str
    cells: Mapping[str, str]
    measurement: _Measured | None = None

    def rows(self) -> Iterator[RowName]:
        """The row that was asked for, and the one that its samples are of, if that is another one.

        An older OpAtlas may have computed the signature in the record in another way.
        """
        yield RowName(self.kernel_type, signature(self.kernel_type, self.cells))
        ran_as = self.measurement.ran_as if self.measurement is not None else None
        if ran_as is not None:
            yield RowName(ran_as.kernel_type, signature(ran_as.kernel_type, ran_as.cells or self.cells))


def _lines_of(path: Path) -> Iterator[_Line]:
    """The records of a history, as far as `_Line` goes. Raises OpAtlasError."""
    if path.exists():
        for number, line in enumerate(_lines(path)[1:], start=2):
            yield decode(line, _Line, f"{path}:{number}")


def _lines(path: Path) -> list[bytes]:
    """Whole lines, each with its end."""
    remedy = "move it away, or restore it"
    try:
        with open_own(path) as packed, gzip.open(packed) as file:
            # By pieces: a read of so many bytes takes the memory for them first.
            pieces: list[bytes] = []
            while (piece := file.read(_PIECE_BYTES)) and len(pieces) * _PIECE_BYTES <= _MOST_BYTES:
                pieces.append(piece)
            content = b"".join(pieces)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise OpAtlasError(f"{path}: not a history of OpAtlas ({error}): {remedy}") from None
    except OSError as error:
        raise OpAtlasError(f"{path}: cannot be read ({error.strerror}): make it readable") from None
    if len(content) > _MOST_BYTES:
        raise OpAtlasError(f"{path}: a history of more than {_MOST_BYTES:,} bytes is not read: {remedy}")
    journal.parse(content.partition(b"\n")[0] + b"\n", path)
    return content.splitlines(keepends=True)


def _file_stem(run_id: str) -> str:
    if not is_run_id(run_id):
        raise OpAtlasError(f"the run id {run_id!r} cannot name a file: use letters, digits and . _ + - only")
    return run_id
