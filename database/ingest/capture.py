"""A profiler capture as a stream: kernel_details*.csv of torch_npu, op_summary*.csv of msprof.

The file is read in blocks, so that memory does not grow with it. Every generation of headers is
read: `Block Dim` or `Block Num`, with or without `Device_id` and `OP State`, any metric group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from database.errors import OpAtlasError, TableError
from database.schema import ACCELERATOR_CORE, BASE, INPUT_SHAPES, OP_STATE, REQUIRED
from database.store import read_header

TYPE = "Type"
DURATION = "Duration(us)"
CONTEXT_ID = "Context ID"

#: Small enough that a block's tables stay in the processor's cache: 8 MiB blocks are a fifth slower.
BLOCK_BYTES = 2 << 20

#: What msprof's op_summary calls the columns of kernel_details.
_SYNONYMS = {
    TYPE: "OP Type",
    DURATION: "Task Duration(us)",
    ACCELERATOR_CORE: "Task Type",
    OP_STATE: "Op State",
}

#: Columns that describe a launch. In a file without `Context ID` everything else is a counter.
_DESCRIPTIVE = frozenset(
    {
        *("Step Id", "Device_id", "Model ID", "Model Name", "Infer ID", "Task ID", "Stream ID", "Name", "Op Name"),
        *(TYPE, "OP Type", DURATION, "Task Duration(us)", "Start Time(us)", "Task Start Time(us)"),
        *("Wait Time(us)", "Task Wait Time(us)", "Block Dim", "Block Num", "Mix Block Dim", "Mix Block Num"),
        *("HF32 Eligible", CONTEXT_ID, "Task Type", "Op State", *BASE),
    }
)

#: A file with more of them has the header of another one: its rows are not to be trusted.
_MALFORMED_LIMIT = 10_000
_AGAIN = "Take the capture again"
LEVEL_0_REMEDY = (
    "Take the capture again with profiler_level=ProfilerLevel.Level1 (torch_npu.profiler) or --task-time=l1 (msprof)"
)


@dataclass(frozen=True)
class Header:
    """Which columns of a capture hold what.

    Attributes:
        names: every column, in the file's order.
        text: the file's name of `Type` and of each base column that it has, by our name.
        duration: the file's name of the duration column.
        counters: the counter columns.
    """

    names: tuple[str, ...]
    text: Mapping[str, str]
    duration: str
    counters: tuple[str, ...]


@dataclass(frozen=True)
class Chunk:
    """Rows that were read together.

    Attributes:
        first_row: number of its first row among the well-formed rows of the file, from 0.
        rows: how many there are.
        text: dictionary-encoded cells of `Type` and the base columns that the file has.
        duration_us: durations in microseconds; NaN where the cell is no number.
        counters: values of each counter; NaN where the cell is no number.
    """

    first_row: int
    rows: int
    text: Mapping[str, pa.DictionaryArray]
    duration_us: np.ndarray
    counters: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class MalformedRow:
    """A row with another number of fields than the header; `lines` > 1 if an open quote swallowed others."""

    line: int
    fields: int
    lines: int


class NotNumeric(Exception):
    """A column of numbers holds a word: read the file again with `numbers_as_text`."""


def find_captures(path: Path) -> list[Path]:
    """The capture files at `path`: the file itself, or every `*kernel_details*.csv` below the folder, sorted.

    Raises:
        OpAtlasError: there is no such path, or the folder has no capture.
    """
    if path.is_dir():
        found = sorted(file for file in path.rglob("*") if _is_capture_name(file.name) and file.is_file())
        if not found:
            raise OpAtlasError(
                f"{path}: no CSV file named *kernel_details* in this folder or below it: "
                f"name the folder that the profiler wrote, or one file (an op_summary file too)"
            )
        return found
    if not path.exists():
        raise OpAtlasError(f"{path}: no such file or folder: check --profiling-path")
    return [path]


def _is_capture_name(name: str) -> bool:
    return "kernel_details" in name.lower() and name.lower().endswith(".csv")


def read_capture_header(path: Path) -> Header:
    """Which columns the capture has.

    Raises:
        TableError: the file cannot be read, is no capture, or was taken at level 0 (no shapes).
    """
    names = read_header(path)
    text = {}
    for column in (TYPE, *BASE):
        for name in (column, _SYNONYMS.get(column)):
            if name in names:
                text[column] = str(name)
                break
    duration = DURATION if DURATION in names else _SYNONYMS[DURATION]
    if TYPE not in text or duration not in names:
        raise TableError(
            path,
            f"no column {TYPE!r} or no column {DURATION!r}; the columns are: {', '.join(names[:8])}",
            "This is neither a kernel_details nor an op_summary file; leave it out",
            line=1,
        )
    if INPUT_SHAPES not in text:
        raise TableError(path, "taken at profiler level 0, which records no shapes", LEVEL_0_REMEDY, line=1)
    missing = [column for column in REQUIRED if column not in text]
    if missing:
        raise TableError(path, f"no column {', '.join(map(repr, missing))}", LEVEL_0_REMEDY, line=1)
    # The profiler writes the counters last, whatever their metric group.
    tail = names[names.index(CONTEXT_ID) + 1 :] if CONTEXT_ID in names else names
    counters = tuple(name for name in tail if name not in _DESCRIPTIVE and name)
    return Header(tuple(names), text, duration, counters)


class Capture:
    """A capture being read. `malformed` is complete once `chunks` has ended."""

    def __init__(self, path: Path, header: Header, *, numbers_as_text: bool = False) -> None:
        """
        Args:
            numbers_as_text: read durations and counters word by word, so that one which is no
                number costs its own cell only. Slower, and hardly ever needed.
        """
        self.path = path
        self.header = header
        self.malformed: list[MalformedRow] = []
        self._numbers_as_text = numbers_as_text
        self._swallowed_lines = 0

    def chunks(self, on_block: Callable[[int], None] = lambda size: None) -> Iterator[Chunk]:
        """The rows, block by block.

        Args:
            on_block: is told the bytes of each block that has been read.

        Raises:
            NotNumeric: see `numbers_as_text`.
            TableError: the file is not UTF-8 CSV.
        """
        header = self.header
        word = pa.dictionary(pa.int32(), pa.string())
        number = word if self._numbers_as_text else pa.float64()
        types = dict.fromkeys(header.text.values(), word)
        types |= dict.fromkeys((header.duration, *header.counters), number)
        options = {
            # One thread, so that a malformed row knows its number.
            "read_options": pa.csv.ReadOptions(
                use_threads=False, block_size=BLOCK_BYTES, column_names=header.names, skip_rows=1
            ),
            # Blank lines become empty rows, which keeps the count of lines right; no profiler breaks
            # a line inside a cell, and not allowing for it halves the time.
            "parse_options": pa.csv.ParseOptions(ignore_empty_lines=False, invalid_row_handler=self._reject),
            "convert_options": pa.csv.ConvertOptions(column_types=types, include_columns=list(types)),
        }
        row = 0
        try:
            with pa.csv.open_csv(str(self.path), **options) as reader:
                for batch in reader:
                    yield self._chunk(batch, row)
                    row += batch.num_rows
                    if len(self.malformed) > _MALFORMED_LIMIT:
                        raise TableError(self.path, f"more than {_MALFORMED_LIMIT} rows do not fit the header", _AGAIN)
                    on_block(BLOCK_BYTES)
        except pa.ArrowInvalid as error:
            if not self._numbers_as_text and "conversion error to double" in str(error):
                raise NotNumeric from None
            if "Empty CSV file" not in str(error):
                raise TableError(self.path, f"not readable as UTF-8 CSV ({error})", _AGAIN) from None
        except OSError as error:
            raise TableError(self.path, f"cannot be read ({error})", "Check the path and its permissions") from None

    def line_of(self, row: int) -> int:
        """The line of a well-formed row (from 0), the header being line 1; good for rows read so far."""
        line = row + 2
        for bad in self.malformed:
            if bad.line > line:
                break
            line += bad.lines
        return line

    def _reject(self, row: pa.csv.InvalidRow) -> str:
        lines = row.text.count("\n") + 1
        self.malformed.append(MalformedRow(row.number + self._swallowed_lines, row.actual_columns, lines))
        self._swallowed_lines += lines - 1
        return "skip"

    def _chunk(self, batch: pa.RecordBatch, first_row: int) -> Chunk:
        header = self.header
        return Chunk(
            first_row=first_row,
            rows=batch.num_rows,
            text={column: batch.column(name) for column, name in header.text.items()},
            duration_us=_numbers(batch.column(header.duration)),
            counters={name: _numbers(batch.column(name)) for name in header.counters},
        )


def _numbers(column: pa.Array) -> np.ndarray:
    """A column as float64, NaN where there is no number."""
    if not isinstance(column, pa.DictionaryArray):
        return column.to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]
    values = np.array([_number(word) for word in column.dictionary.to_pylist()], dtype=np.float64)
    return values[column.indices.to_numpy(zero_copy_only=False)]  # type: ignore[no-any-return]


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return float("nan")
